"""Snapshots: the files that a sandbox has changed, as one compressed archive (`sandbox_agent/incremental_tar.py`).

The archive goes through a pipe between the sandbox agent and a thread of this process. So an archive may be longer than
memory, and the event loop goes on. An archive is never unpacked outside of a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, Self, TypeVar

import zstandard

from rollyard.core.errors import TooLarge

T = TypeVar("T")
SNAPSHOT_SECONDS = 600.0
"""Greatest time of one snapshot, or of one start from a snapshot."""
_LEVEL = 1
_CHUNK = 1 << 20
_POLL_SECONDS = 0.5
_THREADS = ThreadPoolExecutor(8, "snapshots")
"""Threads of their own. They wait for sandboxes, and other work of the node agent must not wait for them."""
_MAX_WINDOW = 8 << 20


@dataclass(frozen=True)
class SnapshotPart:
    """A folder, to which a snapshot is limited. Paths in its archive begin in the folder, and its first entry is the folder;
    there is none if the folder is gone."""

    folder: str
    names: Sequence[str] = ()
    """Names of files and folders that count as unchanged, wherever they are."""
    endings: Sequence[str] = ()
    """Endings of such names."""
    marks: Sequence[str] = ()
    """Names of files by which a folder that has one counts as unchanged."""
    largest: int = 1 << 62
    """Greatest length of a file in bytes. Longer ones are left out, and count as unchanged."""


@dataclass(frozen=True)
class RestoreRules:
    """Changes of a snapshot that have no effect when it is applied. All but `programs` are regular expressions for whole
    paths."""

    left_out: str
    """Nothing that was done to files at these paths counts."""
    image_first: str
    """Files of the image at these paths stay as they are, and none is deleted; new ones are added. The same holds in the
    folders of the image's PATH, where moreover no new file may have the name of a program of the image. It holds for paths
    below each folder of the image in which Python is installed too, as if this folder were the root."""
    of_prefix: str = r"(?!)"
    """Nothing new counts at these paths below a folder in which Python is installed."""
    programs: str = ""
    """Names of programs, with spaces between, that no new file in a folder of PATH may have, also if the image lacks them."""
    named: str = r"(?!)"
    """Files at these paths count, and `Sandbox.named` has the paths of those that were written."""


@dataclass(frozen=True)
class SandboxSnapshot:
    """A snapshot in a file without a name, which is gone when it is closed or when this process dies."""

    file: BinaryIO
    sha256: str
    """Digest of the compressed file. Equal changes give equal digests."""
    size: int
    """Length of the compressed file in bytes."""
    archive_bytes: int
    """Length before the compression."""
    files: int
    left_out: tuple[str, ...] = ()
    """Names of sockets, devices, files that could not be read and files that are too large; at most ten."""
    left_out_count: int = 0

    def read(self) -> bytes:
        self.file.seek(0)
        return self.file.read()

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ArchivePipe:
    """A pipe to or from a sandbox, with a thread at our end. Leaving the block ends the thread."""

    def __init__(self, work: Callable[[PipeEnd], T], *, reads: bool) -> None:
        """`work` runs in the thread; it reads from the pipe if `reads`, else it writes."""
        read, write = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user may have reached the limit of memory for pipes
            fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._end = PipeEnd(read if reads else write)
        self.theirs = write if reads else read
        self._work = asyncio.get_running_loop().run_in_executor(_THREADS, self._run, work)

    async def result(self) -> Any:
        """Return what the thread has returned."""
        return await self._work

    def let_go(self) -> None:
        """Close the other end, once the sandbox has it."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go()
        self._end.stopped.set()
        await asyncio.gather(self._work, return_exceptions=True)

    def _run(self, work: Callable[[PipeEnd], T]) -> T:
        try:
            return work(self._end)
        finally:
            os.close(self._end.fd)


class PipeEnd:
    """Our end of a pipe. It is used in one thread, which other threads can stop."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.stopped = threading.Event()
        os.set_blocking(fd, False)

    def chunks(self) -> Iterator[bytes]:
        """Yield what arrives, until the other end is closed."""
        while self._wait(select.POLLIN):
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                continue
            if not data:
                return
            yield data

    def write(self, data: bytes) -> bool:
        """Write everything. Return False if the other end is closed."""
        view = memoryview(data)
        while view and self._wait(select.POLLOUT):
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return False
        return not view

    def _wait(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self.fd, event)
        while not self.stopped.is_set():
            if poll.poll(_POLL_SECONDS * 1000):
                return True
        return False


def compress(end: PipeEnd, file: BinaryIO, most: int | None = None) -> tuple[str, int, int]:
    """Compress what arrives into the file. Return the file's sha256, its length, and the length before compression. Raises
    TooLarge once the file has more than `most` bytes."""
    packer = zstandard.ZstdCompressor(_LEVEL, write_checksum=True).compressobj()
    digest, size, before = hashlib.sha256(), 0, 0

    def put(data: bytes) -> None:
        nonlocal size
        digest.update(data)
        size += len(data)
        file.write(data)

    for chunk in end.chunks():
        before += len(chunk)
        put(packer.compress(chunk))
        if most is not None and size > most:
            raise TooLarge(f"a compressed snapshot may have at most {most} bytes; delete files that are not needed")
    put(packer.flush())
    file.flush()
    return digest.hexdigest(), size, before


def decompress(end: PipeEnd, file: BinaryIO) -> str | None:
    """Write the archive in the file to the pipe. Return the end of a sentence about a file that is not an archive."""
    file.seek(0)
    try:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        for chunk in unpacker.read_to_iter(file, write_size=_CHUNK):
            if not end.write(chunk):
                break
    except zstandard.ZstdError:
        return "it is damaged"
    return None


def refusal(reply: dict[str, Any], disk_bytes: int) -> str | None:
    """Return why a sandbox could not be started from a snapshot; None if it was."""
    if "differs" in reply:
        return (
            f"the image has no {reply['differs']}, which the snapshot has not changed: start it with the image from which "
            "the snapshot was taken"
        )
    if "broken" in reply:
        return f"the snapshot cannot be read: {reply['broken']}"
    if reply.get("errno") in (28, 122):
        return f"the snapshot does not fit into the sandbox's {disk_bytes} bytes: raise `sandbox.disk`"
    if "errno" in reply:
        return f"the sandbox cannot write {reply['path']} of the snapshot: {reply['error']}"
    return None
