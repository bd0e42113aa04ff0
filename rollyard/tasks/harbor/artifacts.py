"""Files that an agent leaves for a verifier in an image of its own."""

from __future__ import annotations

import asyncio
import io
import posixpath
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

import zstandard

from rollyard.core.errors import TaskError
from rollyard.kinds.harbor_config import CollectHook, HarborArtifact
from rollyard.kinds.rollout import MAX_ARTIFACT_BYTES
from rollyard.sandbox.program import STDERR, STDOUT, Program, ProgramRefused, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.harbor.verifier_run import ARTIFACTS, SHORT_SECONDS, shell
from rollyard.trajectory import Artifact

REFUSED = "refused"
"""Part of the artifact in place of all others: the reason why there is none."""
TRANSFER = "rollyard.sandbox_agent.file_transfer"
MOST_BYTES, MOST_COMPRESSED = 64 << 20, MAX_ARTIFACT_BYTES - (64 << 10)
SECONDS = 120.0
"""Longest time of the transfer of one artifact."""


class _Unusable(Exception):
    """An artifact that cannot be taken. `str()` ends a sentence about it."""


async def run_hooks(sandbox: Sandbox, hooks: Sequence[CollectHook]) -> None:
    """Run commands that save what the agent leaves. As in Harbor, one that fails has no effect."""
    for hook in hooks:
        try:
            await shell(sandbox, hook.command, hook.timeout_sec)
        except TaskError:  # the agent may have removed the shell
            if await sandbox.was_hurt():
                raise


async def take_artifacts(sandbox: Sandbox, wanted: Sequence[HarborArtifact]) -> Artifact:
    """Return the folder for artifacts, and the others that are there, each as a compressed archive under its path."""
    found: dict[str, str | bytes] = {}
    left = min(MOST_BYTES, sandbox.spec.limits.disk_bytes)
    for one in _with_folder(wanted):
        try:
            archive = await _copied_out(sandbox, one.source)
            if archive is not None and len(archive) > left:
                raise _Unusable(f"has {len(archive)} bytes, and the others leave room for {left} of all artifacts")
            if archive is not None:
                left -= len(archive)
                found[one.source] = await asyncio.to_thread(_packed, archive, one.exclude)
        except _Unusable as error:
            return {REFUSED: f"the artifact {one.source} {error}"}
    if sum(map(len, found.values())) > MOST_COMPRESSED:
        return {REFUSED: f"the artifacts have more than {MOST_COMPRESSED >> 20} MiB when they are compressed"}
    return found


async def put_artifacts(sandbox: Sandbox, artifact: Artifact, wanted: Sequence[HarborArtifact]) -> list[str]:
    """Put artifacts at their paths into another sandbox. Return a note about each that cannot be there. Raises TaskError if an
    empty one cannot either."""
    notes = []
    for one in _with_folder(wanted):
        packed = artifact.get(one.source)
        if not isinstance(packed, bytes):
            continue
        path = one.source.rstrip("/")
        emptied = f"rm -rf {shlex.quote(path)} && mkdir -p {shlex.quote(posixpath.dirname(path))}"
        if await shell(sandbox, emptied, SHORT_SECONDS) != 0:
            raise TaskError(f"the verifier's image has no room for the artifact {path}")
        data = await asyncio.to_thread(zstandard.ZstdDecompressor().decompress, packed, 2 * MOST_BYTES)
        async with await _program(sandbox, "in", path) as program:
            said, code = await program.run_to_end(data, SECONDS)
        if code == 0:
            continue
        why = f"the artifact {path} cannot be written in the verifier's sandbox: {said.decode(errors='replace')[-300:]}"
        tried = f"{emptied} && : > {shlex.quote(path)} && {emptied}"
        if await sandbox.was_hurt() or await shell(sandbox, tried, SHORT_SECONDS) != 0:
            raise TaskError(why)
        notes.append(f"{why.strip()}; it is left out")
    return notes


def _with_folder(wanted: Sequence[HarborArtifact]) -> Iterator[HarborArtifact]:
    if not any(one.source.rstrip("/") == ARTIFACTS for one in wanted):
        yield HarborArtifact(source=ARTIFACTS)
    yield from wanted


async def _copied_out(sandbox: Sandbox, path: str) -> bytes | None:
    """Return a file or folder as a tar archive; None if it is not there. Raises _Unusable."""
    data = bytearray()
    async with await _program(sandbox, "out", path) as program:
        program.end_input()
        complaints = asyncio.ensure_future(_drained(program))
        try:
            async with asyncio.timeout(SECONDS):
                while chunk := await program.read(STDOUT):
                    data += chunk
                    if len(data) > MOST_BYTES:
                        raise _Unusable(f"has more than {MOST_BYTES >> 20} MiB")
                return bytes(data) if await asyncio.shield(program.ended) == 0 else None
        except TimeoutError:
            raise _Unusable(f"cannot be read within {SECONDS:g} s") from None
        finally:
            complaints.cancel()


async def _drained(program: Program) -> None:
    while await program.read(STDERR):
        pass


async def _program(sandbox: Sandbox, direction: str, path: str) -> Program:
    try:
        return await sandbox.start_program(ProgramSpec([direction, path], own=TRANSFER))
    except ProgramRefused as error:
        raise TaskError(f"the artifact {path} cannot be copied: {error}") from error


def _packed(archive: bytes, exclude: Sequence[str]) -> bytes:
    """Compress an archive without the files that patterns exclude, as `tar --exclude` reads them. Raises _Unusable."""
    if exclude:
        kept = io.BytesIO()
        try:
            with (
                tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as old,
                tarfile.open(fileobj=kept, mode="w") as new,
            ):
                for entry in old:
                    if not _is_excluded(entry.name, exclude):
                        new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
        except (tarfile.TarError, OSError, ValueError) as error:  # the agent may have changed what the copy printed
            raise _Unusable(f"cannot be read: {error}") from None
        archive = kept.getvalue()
    return zstandard.ZstdCompressor(level=3).compress(archive)


def _is_excluded(name: str, patterns: Sequence[str]) -> bool:
    parts = name.split("/")[1:]
    tails = ["/".join(parts[start:end]) for end in range(1, len(parts) + 1) for start in range(end)]
    return any(fnmatch(tail, pattern.removeprefix("./").rstrip("/")) for tail in tails for pattern in patterns)
