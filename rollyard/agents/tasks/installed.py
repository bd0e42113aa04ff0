"""The task handlers that are installed: our own and plug-ins, by the entry point group `rollyard.tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from rollyard.agents.tasks.base import TaskHandler
from rollyard.agents.tasks.guard import GuardedHandler, explained

ENTRY_POINTS = "rollyard.tasks"


@dataclass(frozen=True, slots=True)
class Handlers:
    """By task kind."""

    loaded: Mapping[str, TaskHandler]
    failed: Mapping[str, str]
    """Why a handler cannot be loaded: type and message of its exception, and the line."""


def load_handlers() -> Handlers:
    """Every installed handler. A plug-in that cannot be loaded takes away its own kind and no other."""
    loaded: dict[str, TaskHandler] = {}
    failed: dict[str, str] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded[entry.name] = GuardedHandler(entry.name, entry.load()())
        except BaseException as error:  # noqa: BLE001 - the boundary to code that is not ours
            failed[entry.name] = explained(error, entry.module)
    return Handlers(loaded, failed)
