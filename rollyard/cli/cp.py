"""`rollyard cp`: files and folders from the sandbox of a running rollout, or to it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import click

from rollyard.cli.options import with_client
from rollyard.cli.parameter_types import SIZE
from rollyard.cli.printable import printable
from rollyard.cli.tar_files import pack, unpack
from rollyard.client.async_client import AsyncClient
from rollyard.client.attachment import Attachment
from rollyard.core.aio import running
from rollyard.core.errors import RollyardError
from rollyard.kinds.rollout import ID_PATTERN
from rollyard.wire.attach import CHUNK, STDOUT, AttachKind, Start

PROGRESS_SECONDS = 0.5
MAX_MESSAGE_CHARS = 8000
_MOST_NOTES = 5
"""Number of sentences about what is left out. The others are counted."""


@click.command()
@click.argument("source")
@click.argument("dest")
@click.option(
    "--max-size", "limit", type=SIZE, default="1Gi", help="greatest size of the copied files together  [default: 1Gi]"
)
@click.option(
    "--eval",
    "in_eval",
    is_flag=True,
    help="also in EVAL, whose sandbox has the hidden tests; a change there changes the reward",
)
@click.option("-q", "--quiet", is_flag=True, help="print no progress")
@with_client
async def cp(
    client: AsyncClient, namespace: str, source: str, dest: str, limit: int, in_eval: bool, quiet: bool
) -> None:
    """Copy files to or from the sandbox of a running rollout, or of a failed one that is kept.

    Write rollyard cp ROLLOUT:/path DEST, or rollyard cp FILE ROLLOUT:/path. If the destination is a folder, the copy is
    made in it. The rollout's history says that somebody copied. A path in the sandbox that does not begin with / starts
    in the working folder of the rollout's tools.
    """
    inside, target = _inside(source), _inside(dest)
    if (inside is None) == (target is None):
        raise click.UsageError("write one of the two as ROLLOUT:PATH; a local path with a colon begins with ./ or /")
    id, path = inside or target or ("", "")
    kind = AttachKind.COPY_OUT if inside else AttachKind.COPY_IN
    if target and not Path(source).exists():  # noqa: ASYNC240 - nothing else runs yet
        raise click.UsageError(f"there is no file or folder {source}")
    progress = _Progress(f"{source} to {dest}", shown=not quiet and sys.stderr.isatty())
    async with client.attach(id, Start(kind=kind, path=path, eval=in_eval), namespace) as attached:
        with progress:
            copy = (
                _copy_out(attached, Path(dest), limit, progress, _own_name(path))
                if inside
                else _copy_in(attached, Path(source), limit, progress)
            )
            copied = await copy
    if attached.code or not copied:
        raise RollyardError(f"{source} is not copied: {progress.complaints.rstrip() or f'exit code {attached.code}'}")
    progress.end_notes()
    if progress.complaints:
        click.echo(progress.complaints, err=True)


def _inside(word: str) -> tuple[str, str] | None:
    """Return (rollout, path in its sandbox); None for a local path. An id may have colons, so the path begins after the
    first `:/`, or else after the last colon."""
    if word.startswith(("/", ".", "~")):
        return None
    id, colon, path = word.partition(":/")
    id, colon, path = (id, colon, "/" + path) if colon else word.rpartition(":")
    return (id, path or ".") if colon and re.fullmatch(ID_PATTERN, id) else None


def _own_name(path: str) -> str:
    """Return the last part of a path as the person wrote it. The sandbox must not choose the name: a link there, or a forged
    stream, could call the copy `.bashrc`. Empty: the path has no name of its own, such as `.` and `/`."""
    last = path.rstrip("/").rpartition("/")[2]
    return "" if last in (".", "..") else last


class _Progress:
    """A line on standard error with the number of copied bytes, and what the sandbox's side says."""

    def __init__(self, what: str, shown: bool) -> None:
        self.bytes = 0
        self.complaints = ""
        self._what = what
        self._shown = shown
        self._due = 0.0
        self._notes = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._print()
            click.echo("", err=True)

    def add(self, count: int) -> None:
        self.bytes += count
        now = asyncio.get_running_loop().time()
        if self._shown and now >= self._due:
            self._due = now + PROGRESS_SECONDS
            self._print()

    def complain(self, data: bytes) -> None:
        self._keep(data.decode(errors="replace"))

    def note(self, text: str) -> None:
        """Keep one of the first sentences, and count the others."""
        self._notes += 1
        if self._notes <= _MOST_NOTES:
            self._keep(f"{text}\n")

    def end_notes(self) -> None:
        if self._notes > _MOST_NOTES:
            self._keep(f"and {self._notes - _MOST_NOTES} more like these\n")

    def _keep(self, text: str) -> None:
        """Keep a text that names files of the sandbox, or that a program in the sandbox wrote."""
        self.complaints = (self.complaints + printable(text))[:MAX_MESSAGE_CHARS]

    def _print(self) -> None:
        click.echo(f"\r{self._what}: {self.bytes / (1 << 20):.1f} MiB", nl=False, err=True)


async def _copy_out(attached: Attachment, dest: Path, limit: int, progress: _Progress, name: str) -> bool:
    """Unpack the stream as it arrives. A pipe leads it to the thread that unpacks. `name`: of the copy in a folder. Return
    whether there was something to copy."""
    take, give = os.pipe()

    def unpack_all() -> bool:
        with open(take, "rb") as stream:
            return unpack(stream, dest, limit, progress.note, name, lambda: attached.code == 0)

    unpacking = asyncio.create_task(asyncio.to_thread(unpack_all))
    try:
        async for channel, data in attached.output():
            if channel == STDOUT:
                progress.add(len(data))
                await asyncio.to_thread(_write, give, data)
            else:
                progress.complain(data)
            await attached.used(channel, data)
    except BrokenPipeError:
        pass  # the thread has given up, and raises the reason
    finally:
        os.close(give)
        await asyncio.gather(unpacking, return_exceptions=True)
    return not attached.code and unpacking.result()


async def _copy_in(attached: Attachment, source: Path, limit: int, progress: _Progress) -> bool:
    """Pack the stream as the sandbox takes it. A pipe leads it from the thread that packs."""
    take, give = os.pipe()

    def pack_all() -> None:
        with open(give, "wb") as stream:
            pack(source, stream, limit, progress.note)

    async def send() -> None:
        packing = asyncio.create_task(asyncio.to_thread(pack_all))
        try:
            while data := await asyncio.to_thread(os.read, take, CHUNK):
                await attached.write(data)
                progress.add(len(data))
        finally:
            os.close(take)
            await asyncio.gather(packing, return_exceptions=True)
        packing.result()
        await attached.end_input()

    async with running(send()) as sending, running(_complaints(attached, progress)) as receiving:
        await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            sending.result()  # raises, if the source cannot be packed
        await receiving
        return True


async def _complaints(attached: Attachment, progress: _Progress) -> None:
    async for channel, data in attached.output():
        progress.complain(data)
        await attached.used(channel, data)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
