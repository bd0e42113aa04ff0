"""Task source plug-ins: code outside of Rollyard that makes tasks. The tasks are stored before they are drawn.

A plug-in is named in the entry point group `rollyard.sources`. Its factory is called with the options of the request,
and returns an object. The object's `task(index)` returns the task of this index, or None if there are no more. The same
index must give the same task after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import pydantic

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.batch import SourceRef
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.task import Task
from rollyard.server.batches.task_lines import MAX_TASK_LINE_BYTES

log = logging.getLogger(__name__)
ENTRY_POINTS = "rollyard.sources"


class TaskSource(Protocol):
    """Object that a plug-in's factory returns."""

    def task(self, index: int) -> Mapping[str, Any] | None:
        """Return the task of this index, or None if there are no more. The call may block, because it runs in a thread."""


Factory = Callable[..., TaskSource]


def installed_sources() -> dict[str, Callable[[], Factory]]:
    """Return plug-in name -> function that imports the factory."""
    return {entry.name: entry.load for entry in entry_points(group=ENTRY_POINTS)}


class TaskSources:
    """Opened sources of this server, by name and options."""

    def __init__(self, installed: Callable[[], Mapping[str, Callable[[], Factory]]] = installed_sources) -> None:
        self._installed = installed
        self._open: dict[str, TaskSource] = {}
        self._turn = asyncio.Lock()
        """Lock for one call at a time, because a plug-in need not be thread-safe."""

    async def read(self, source: SourceRef, start: int, count: int) -> tuple[list[str], bool]:
        """Return at most `count` tasks from index `start` on (canonical JSON), and whether the source's end was
        reached.

        Raises Invalid.
        """
        async with self._turn:
            return await asyncio.to_thread(self._read, source, start, count)

    def _read(self, source: SourceRef, start: int, count: int) -> tuple[list[str], bool]:
        found: list[str] = []
        opened = self._opened(source)
        for index in range(start, start + count):
            try:
                made = opened.task(index)
            except Exception as error:
                raise _refused(source, f"task({index}) failed: {type(error).__name__}: {error}") from error
            if made is None:
                return found, True
            found.append(_line(source, index, made))
        return found, False

    def _opened(self, source: SourceRef) -> TaskSource:
        key = source.model_dump_json()
        if key not in self._open:
            installed = self._installed()
            if source.name not in installed:
                there = ", ".join(sorted(installed)) or "none"
                raise _refused(
                    source,
                    f"no such plug-in; installed ones: {there}. Install it in the server's Python, then restart it",
                )
            try:
                self._open[key] = installed[source.name]()(**source.options)
            except Exception as error:
                raise _refused(source, f"it cannot be opened: {type(error).__name__}: {error}") from error
        return self._open[key]


def _line(source: SourceRef, index: int, made: Mapping[str, Any]) -> str:
    try:
        task = Task.model_validate(dict(made))
        check_task(task)
        text = task.canonical()
    except (pydantic.ValidationError, Invalid, TypeError, ValueError) as error:
        raise _refused(source, f"task({index}) returned no valid task: {error}") from None
    if len(text) > MAX_TASK_LINE_BYTES:
        raise _refused(source, f"task({index}) has {len(text)} bytes; at most {MAX_TASK_LINE_BYTES} are allowed")
    return text


def _refused(source: SourceRef, message: str) -> Invalid:
    text = f"task source {source.name!r}: {message}"
    return Invalid(text, causes=[Cause("source", text)])
