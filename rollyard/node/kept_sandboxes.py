"""Sandboxes that outlive their failed rollouts for a while, so that people can look into them.

A kept sandbox uses a place of the allocation, so fewer rollouts run meanwhile. It ends when its time is over, when the node
agent drains, and with the job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rollyard.kinds.rollout import Stage
from rollyard.sandbox.sandbox import Sandbox
from rollyard.wire.node import KeptSandbox, LeaseKey, LeaseRef

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks whether a kept sandbox is still alive."""


class Kept:
    """One kept sandbox."""

    def __init__(self, ref: LeaseRef, sandbox: Sandbox, seconds: float) -> None:
        self.ref = ref
        self.sandbox = sandbox
        self.until = time.time() + seconds

    @property
    def stage(self) -> Stage:
        """Stage in which the rollout failed."""
        return self.ref.stage

    @property
    def why_gone(self) -> str:
        if time.time() >= self.until:
            return "it was kept long enough"
        return "its allocation drains or ends, or it has ended by itself"

    def note_look(self) -> None:
        """Do nothing: the attempt has ended, so no look can change its result."""


class KeptSandboxes:
    def __init__(self, most: int, changed: Callable[[], None]) -> None:
        """`most`: greatest number of kept sandboxes. `changed` is called when the number changes."""
        self._most = most
        self._changed = changed
        self._kept: dict[LeaseKey, tuple[Kept, asyncio.Task[None]]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: LeaseKey) -> Kept | None:
        found = self._kept.get(key)
        return found[0] if found is not None else None

    def reports(self) -> list[KeptSandbox]:
        return [KeptSandbox(lease=kept.ref, until=kept.until) for kept, _ in self._kept.values()]

    def keep(self, ref: LeaseRef, sandbox: Sandbox, seconds: float) -> bool:
        """Keep a sandbox, which then belongs to this object. Return False if there is no room for it."""
        if self._closed or not sandbox.alive:
            return False
        if len(self._kept) >= self._most:
            log.warning("the sandbox of rollout %s is not kept: %d are kept already", ref.id, self._most)
            return False
        kept = Kept(ref, sandbox, seconds)
        self._kept[ref.key] = kept, asyncio.create_task(self._hold(kept))
        self._changed()
        log.info("the sandbox of rollout %s is kept for %g s", ref.id, seconds)
        return True

    async def close(self) -> None:
        """End all kept sandboxes, and keep no further ones."""
        self._closed = True
        for kept, task in list(self._kept.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._end(kept)  # the task may have been cancelled before it began

    async def _hold(self, kept: Kept) -> None:
        # It may end by itself, which nobody reports. A look at it every second is enough.
        while kept.sandbox.alive and (left := kept.until - time.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, LOOK_SECONDS))
        await self._end(kept)

    async def _end(self, kept: Kept) -> None:
        await kept.sandbox.close()
        if self._kept.pop(kept.ref.key, None) is not None:
            self._changed()
