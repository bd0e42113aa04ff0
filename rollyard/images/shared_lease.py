"""Locks between nodes, as files of a shared folder. `flock` does not hold between the nodes of every file system.

The holder writes a new number into its file every few seconds. A file that stays the same for long belongs to a dead
holder, and somebody else takes it over. Two holders at a time are possible, after a takeover of a holder that was only
slow. So a lease saves work, and nothing may depend on it.

A waiting node opens the file and reads it, because NFS answers `stat` from a cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rollyard.core.aio import running

RENEW_SECONDS = 5.0
LEASE_SECONDS = 60.0
"""Seconds after which a file that does not change belongs to a dead holder."""
_FIRST_SECONDS, _CAP_SECONDS = 0.05, 2.0


class _LeaseFile:
    """The file, under this process's token. Each method may block for as long as the file system does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = secrets.token_hex(8)

    def take(self) -> bool:
        try:
            file = open(self._path, "x")  # noqa: SIM115
        except FileExistsError:
            return False
        try:
            with file:
                file.write(self._token)
        except OSError:  # on a full disk an empty file would look like a holder
            self._path.unlink(missing_ok=True)
            raise
        return True

    def read(self) -> str:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return ""

    def renew(self, beat: int) -> None:
        with open(self._path, "r+") as file:  # it is never empty, also on a full disk, and not made again
            if file.read().startswith(self._token):
                file.seek(0)
                file.write(f"{self._token} {beat}")

    def give_back(self) -> None:
        if self.read().startswith(self._token):
            self._path.unlink(missing_ok=True)

    def remove_stale(self) -> None:
        """Remove a dead holder's file. One of several nodes that do this at the same time renames the file."""
        stale = self._path.with_name(f"{self._path.name}.{self._token}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(stale)
            stale.unlink()


@contextlib.asynccontextmanager
async def shared_lease(path: Path, done: Callable[[], bool]) -> AsyncIterator[bool]:
    """Wait for the lease, or until `done` returns True. Yield whether the lease is held. Raises OSError."""
    file = _LeaseFile(path)
    if not await _taken(file, done):
        yield False
        return
    try:
        async with running(_renew(file)):
            yield True
    finally:
        await asyncio.to_thread(file.give_back)


async def _taken(file: _LeaseFile, done: Callable[[], bool]) -> bool:
    loop, pause, seen = asyncio.get_running_loop(), _FIRST_SECONDS, ""
    since = loop.time()  # the holder's file is empty for a moment after it has appeared
    while not await asyncio.to_thread(done):
        if await asyncio.to_thread(file.take):
            return True
        now, held = loop.time(), await asyncio.to_thread(file.read)
        if held != seen:
            seen, since = held, now
        elif now - since > LEASE_SECONDS:
            await asyncio.to_thread(file.remove_stale)
            continue
        await asyncio.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, _CAP_SECONDS)
    return False


async def _renew(file: _LeaseFile) -> None:
    beat = 0
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        beat += 1
        with contextlib.suppress(OSError):
            await asyncio.to_thread(file.renew, beat)
