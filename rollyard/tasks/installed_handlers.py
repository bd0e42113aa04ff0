"""The installed task handlers, of Rollyard and of plug-ins, from the entry point group `rollyard.tasks`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from rollyard.core.errors import RollyardError, connection_failure_text
from rollyard.kinds.installed_task_fields import installed_models
from rollyard.tasks.guarded_handler import GuardedHandler, with_source_line

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
ENTRY_POINTS = "rollyard.tasks"


@dataclass(frozen=True, slots=True)
class Handlers:
    """Installed handlers by task kind."""

    loaded: Mapping[str, GuardedHandler]
    failed: Mapping[str, str]
    """Task kind -> reason why its handler cannot be loaded: type, message and line of the exception."""

    async def close(self) -> None:
        """Release what the handlers hold, such as checker processes. Errors and time-outs are logged."""
        for kind, handler in self.loaded.items():
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await handler.close()
            except (RollyardError, TimeoutError) as error:
                log.warning("the handler of task kind %r failed to close: %s", kind, connection_failure_text(error))


def load_handlers() -> Handlers:
    """Load every installed handler. A plug-in that cannot be loaded removes only its own task kind."""
    loaded: dict[str, GuardedHandler] = {}
    failed: dict[str, str] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded[entry.name] = GuardedHandler(entry.name, entry.load()())
        except BaseException as error:  # noqa: BLE001 - the boundary to code that is not ours
            failed[entry.name] = with_source_line(error, entry.module)
            # Rollyard's own error: a library that is not installed, which the node agent perhaps does not need
            log.log(
                logging.INFO if isinstance(error, RollyardError) else logging.ERROR,
                "task kind %s is not available here: its handler cannot be loaded: %s",
                entry.name,
                failed[entry.name],
            )
    installed_models()
    log.info("task kinds: %s", ", ".join(sorted(loaded)))
    return Handlers(loaded, failed)
