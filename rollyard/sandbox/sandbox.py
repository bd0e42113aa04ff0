"""One sandbox: its tools, files, snapshots, sockets and programs.

A sandbox leaves nothing in the host's file system: its changes are in memory, and its socket has no name. In whatever
way this process dies, the sandbox agent sees the end of the socket and ends the sandbox. The sandbox agent is process 1
in the sandbox, and no other process in the sandbox can end it. So no clean-up is ever needed.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

from rollyard.core.errors import (
    SandboxBroken,
    SandboxLost,
    SandboxSilent,
    SnapshotRefused,
    SnapshotUnusable,
    TooLarge,
)
from rollyard.sandbox import egress_proxy
from rollyard.sandbox.base import CellResult, CommandResult, EditResult, SandboxSpec
from rollyard.sandbox.cgroups import SandboxKills
from rollyard.sandbox.egress_proxy import EgressProxy
from rollyard.sandbox.gate import Gate
from rollyard.sandbox.gpus import TakenGpus
from rollyard.sandbox.images import PinnedRoot
from rollyard.sandbox.launcher import Launcher
from rollyard.sandbox.memory_guard.client import KernelKills, MemoryGuard, OverLimit
from rollyard.sandbox.printed_output import PrintedOutput
from rollyard.sandbox.process_refusals import ProcessRefusals
from rollyard.sandbox.program import BOTH_OUTPUTS, Program, ProgramSpec, start_program
from rollyard.sandbox.sandbox_connection import SandboxConnection
from rollyard.sandbox.snapshot import (
    SNAPSHOT_SECONDS,
    ArchivePipe,
    PipeEnd,
    RestoreRules,
    SandboxSnapshot,
    SnapshotPart,
    compress,
    decompress,
    refusal,
)  # fmt: skip
from rollyard.sandbox_agent.frames import Header
from rollyard.sandbox_agent.settings import WORKSPACE

CALL_SECONDS = 120.0
"""Time limit of a bash command or a cell, if the caller names none."""
MARGIN_SECONDS = 30.0
"""Seconds that the sandbox agent gets beyond a call's timeout, to start bash or IPython again and to stop the command. If it
does not reply in this time, the sandbox counts as lost."""
FILE_SECONDS = 60.0
PREPARE_SECONDS = 120.0
MEMORY_SHORT = (
    "the memory of the allocation ran out, while the sandbox may have been within its limit: lower the pool's "
    "`stages.*.workers.max`, or give its allocations more memory"
)
PROCESSES_SHORT = (
    "the allocation may start no more processes: raise the limit of the job or of the groups above it (TasksMax, pids.max) or "
    "that of the user (ulimit -Hu), or lower the pool's `stages.*.workers.max`"
)


class Sandbox:
    """One isolated environment. Calls raise SandboxLost if the sandbox is gone. A process inside the sandbox cannot
    cause this, unless the sandbox's processes together use up the job's memory."""

    def __init__(
        self,
        sandbox_id: str,
        launcher: Launcher,
        connection: SandboxConnection,
        gate: Gate,
        guard: MemoryGuard,
        spec: SandboxSpec,
        image: PinnedRoot,
        gpus: TakenGpus,
        refusals: ProcessRefusals,
        files: Sequence[tuple[Path, tuple[int, int] | None]],
    ) -> None:
        """`files`: folders of this machine that the sandbox shows, with their identities."""
        self.id = sandbox_id
        self.spec = spec
        self.image = image
        self._gpus = gpus
        self._launcher = launcher
        self._connection = connection
        self._gate = gate
        """Socket through which the sandbox agent passes open files of the sandbox."""
        self._guard = guard
        self._egress = EgressProxy(spec.allowed_hosts)
        self._refusals = refusals
        self._refused = refusals.count() + guard.refusals
        self._files = files
        self.node_fault = ""
        """Sentence about what the node did to the sandbox's processes, or may have done, with the remedy: some were ended, not
        started or kept from writing, while the sandbox was within its limits. Empty: nothing."""
        self.named: Sequence[str] = ()
        """Paths that `RestoreRules.named` has asked for."""
        self._pipes = 0
        """Number of pipes that were passed to the sandbox agent."""
        self._bash_turn = asyncio.Lock()
        self._ipython_turn = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self._connection.alive

    @property
    def workdir(self) -> str:
        """Folder in which the tools start: that of the spec, else the image's working folder, else /workspace."""
        return posixpath.join("/", self.spec.workdir or self.image.root.workdir or WORKSPACE)

    async def prepare(self, tools: Sequence[str]) -> None:
        """Start `tools` before their first calls. "bash" starts in 10 ms, "ipython" in half a second."""
        calls = (self._call({"op": f"prepare {tool}"}, b"", PREPARE_SECONDS) for tool in tools)
        for done in await asyncio.gather(*calls, return_exceptions=True):
            # A task group is not used, because it would wrap SandboxLost in another exception.
            if isinstance(done, BaseException):
                raise done

    async def bash(self, command: str, timeout: float = CALL_SECONDS) -> CommandResult:
        """Run a command in the sandbox's bash, which keeps its state; one command at a time. `timeout` in seconds."""
        async with self._bash_turn:
            body = command.encode("utf-8", "replace")
            reply, output = await self._call({"op": "bash", "timeout": timeout}, body, timeout + MARGIN_SECONDS)
        self._note_mounts(reply)
        return CommandResult(
            _text(output), reply["exit_code"], reply["timed_out"], reply["restarted"], reply["seconds"], self._notes(),
            PrintedOutput(output, reply["total"]),
        )  # fmt: skip

    async def run(self, argv: Sequence[str], data: bytes = b"", timeout: float = CALL_SECONDS) -> CommandResult:
        """Run a program beside the tools, with `data` as its standard input. The output has its standard error too; the middle
        of a long output is missing. Raises ProgramRefused. `timeout` in seconds."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(MARGIN_SECONDS):
                program = await self.start_program(ProgramSpec([*BOTH_OUTPUTS, *argv]))
        except TimeoutError:
            raise SandboxSilent(f"sandbox {self.id}: no program started within {MARGIN_SECONDS:g} s") from None
        async with program:
            output, code = await program.run_to_end(data, timeout)
        return CommandResult(_text(output), code, code is None, False, time.monotonic() - began, self._notes())

    async def printed(self, position: int) -> tuple[bytes, int]:
        """Return what the running bash command has printed after the first `position` bytes, and the number of bytes so
        far; nothing and 0 if no command runs. The middle of a long output is missing."""
        reply, output = await self._call({"op": "printed", "position": position}, b"", FILE_SECONDS)
        return output, reply["position"]

    async def ipython(self, code: str, timeout: float = CALL_SECONDS) -> CellResult:
        """Run a cell in the sandbox's IPython, which keeps its state; one cell at a time. `timeout` in seconds."""
        async with self._ipython_turn:
            body = code.encode("utf-8", "replace")
            reply, output = await self._call({"op": "ipython", "timeout": timeout}, body, timeout + MARGIN_SECONDS)
        self._note_mounts(reply)
        return CellResult(
            _text(output), reply["failed"], reply["timed_out"], reply["restarted"], reply["seconds"], self._notes()
        )

    async def edit(self, command: str, path: str, **arguments: Any) -> EditResult:
        """Call the editor: view, create, str_replace or insert. Wrong arguments give a result with a message, not an
        exception."""
        header = {"op": "edit", "command": command, "path": path, "arguments": arguments}
        reply, output = await self._call(header, b"", FILE_SECONDS)
        return EditResult(_text(output), reply["ok"])

    async def read_file(self, path: str, limit_bytes: int) -> bytes:
        """Return a regular file's content. Relative paths start in /workspace.

        Raises OSError if the file cannot be read: FileNotFoundError, EFBIG for a file above the limit, and others.
        """
        reply, body = await self._call({"op": "read", "path": path, "limit": limit_bytes}, b"", FILE_SECONDS)
        _raise_refusal(reply, path)
        return body

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or replace a file and the folders above it. Raises OSError if the sandbox's file system refuses."""
        reply, _ = await self._call({"op": "write", "path": path, "mode": mode}, data, FILE_SECONDS)
        _raise_refusal(reply, path)

    async def snapshot(
        self,
        limit_bytes: int | None = None,
        folder: Path | None = None,
        most_compressed: int | None = None,
        part: SnapshotPart | None = None,
    ) -> SandboxSnapshot:
        """Save the files that were changed since the sandbox started, also those that it was started with. Processes and
        the memory of bash and IPython are not saved. The caller must close the snapshot.

        `limit_bytes`: greatest length of the archive before it is compressed; default: the sandbox's disk. `folder`:
        folder on the disk that gets the file, which has no name. `most_compressed`: greatest
        length of this file. `part`: a folder of the sandbox, in place of all files. Raises TooLarge and OSError.
        """
        limit, file = limit_bytes or self.spec.limits.disk_bytes, tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the snapshot
        header = {"op": "snapshot", "limit": limit, "part": asdict(part) if part is not None else None}
        try:
            reply, (sha256, size, before) = await self._through_pipe(
                header, lambda end: compress(end, file, most_compressed), reads=True
            )
            if "too_large" in reply:
                raise TooLarge(
                    f"the files that the sandbox changed do not fit into a snapshot: {reply['too_large']}; delete files that "
                    "are not needed"
                )
            if "broken" in reply:
                raise OSError(errno.EPIPE, reply["broken"])
        except BaseException:
            file.close()
            raise
        return SandboxSnapshot(
            file, sha256, size, before, reply["files"], tuple(reply["left_out"]), int(reply["left_out_count"])
        )

    async def restore(self, snapshot: BinaryIO, rules: RestoreRules | None = None) -> None:
        """Apply a snapshot's file to this sandbox, which has just been started from the same image. `rules`: changes that are
        left out; None: none are.

        Raises SnapshotUnusable; SnapshotRefused if a file cannot be written.
        """
        header = {"op": "restore", "rules": asdict(rules) if rules is not None else None}
        reply, damage = await self._through_pipe(header, lambda end: decompress(end, snapshot), reads=False)
        if why := refusal({"broken": damage} if damage else reply, self.spec.limits.disk_bytes):
            raise (SnapshotRefused if "errno" in reply and not damage else SnapshotUnusable)(why)
        self.named = tuple(reply.get("named", ()))

    async def _through_pipe(self, header: Header, work: Callable[[PipeEnd], Any], *, reads: bool) -> tuple[Header, Any]:
        async with ArchivePipe(work, reads=reads) as pipe:
            self._pipes += 1
            number = self._pipes
            # If the sandbox is gone, the call finds out.
            with suppress(OSError):
                self._gate.send(number, pipe.theirs)
            pipe.let_go()
            reply, _ = await self._call({**header, "pipe": number}, b"", SNAPSHOT_SECONDS)
            return reply, await pipe.result()

    async def listen(self, port: int = 0) -> socket.socket:
        """Return a socket that listens on a port of the sandbox's own 127.0.0.1. `port` 0: any free port.

        Every connection comes from this one sandbox, or with `host_network` from this node. The caller must close the
        socket.
        """
        with self._gate.expect() as arrival:
            await self._call({"op": "listen", "ticket": arrival.ticket, "port": port}, b"", FILE_SECONDS)
            (listener,) = await arrival.take()
        return socket.socket(fileno=listener)

    async def start_program(self, spec: ProgramSpec) -> Program:
        """Start a program beside the tools, on a terminal or on pipes of its own. Raises ProgramRefused if the sandbox
        cannot start one more. The program ends when it is closed, at the latest with the sandbox."""
        return await start_program(spec, self._gate, self._call)

    async def open_egress(self) -> None:
        """Start the egress proxy on the sandbox's loopback."""
        await self._egress.start(await self.listen(egress_proxy.PORT))

    async def was_hurt(self) -> bool:
        """Return whether the node has done something to the sandbox since its start, or may have."""
        self._notes()
        return bool(self.node_fault or await asyncio.to_thread(self.lost_files))

    def lost_files(self) -> str:
        """Return the path of a folder of this machine whose files the sandbox shows, if somebody has deleted or replaced it
        meanwhile; empty if all are there. Blocks as long as the file system does."""
        return next((str(path) for path, before in self._files if folder_identity(path) != before), "")

    async def close(self) -> None:
        """End every process of the sandbox and discard everything it wrote. A second call has no effect."""
        self._guard.forget(self.id)
        self._gate.close()
        self._connection.abort("the sandbox was closed")  # first: the sandbox ends even if this call is cancelled
        try:
            await self._egress.close()
            await self._launcher.end()
        finally:
            self.image.release()
            self._gpus.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _note_mounts(self, reply: Header) -> None:
        if reply.get("read_only"):  # no process of a sandbox may change a mount
            self.node_fault = "the root of the sandbox became read-only"

    def _notes(self) -> tuple[str, ...]:
        kills = self._launcher.cgroup.take_kills() if self._launcher.cgroup is not None else None
        reports = [*self._guard.take_reports(self.id), *([kills] if kills is not None else [])]
        own = any(_is_over_limit(one) for one in reports)
        if reports and not own:
            self.node_fault = MEMORY_SHORT
        before, self._refused = self._refused, self._refusals.count() + self._guard.refusals
        notes = [str(report) for report in reports]
        if self._refused > before:
            self.node_fault = PROCESSES_SHORT
            notes.append(
                "the allocation may start no more processes, and the kernel refused some, maybe of this sandbox"
            )
        return tuple(notes)

    async def _call(self, header: Header, body: bytes, limit: float | None) -> tuple[Header, bytes]:
        try:
            reply, answer = await self._connection.call(header, body, limit)
        except SandboxLost as error:
            how = await self._launcher.how_it_ended()
            raise type(error)(f"sandbox {self.id}: {error}{how}{self._launcher.last_output()}") from None
        if reply.get("own_files_lost") and not await asyncio.to_thread(self.lost_files):
            raise SandboxBroken(
                f"the agent took away the folders through which its sandbox is served: {reply['fault']}"
            )
        if "fault" in reply:
            raise SandboxSilent(f"sandbox {self.id}: the sandbox agent failed: {reply['fault']}")
        return reply, answer


def _is_over_limit(report: OverLimit | KernelKills | SandboxKills) -> bool:
    """Whether the sandbox used more memory than its limit."""
    match report:
        case OverLimit():
            return report.used > report.limit
        case SandboxKills():
            return report.over_limit
    return False


def folder_identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from a later one with the same path; None if there is none."""
    try:
        info = folder.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")


def _raise_refusal(reply: Header, path: str) -> None:
    if "errno" in reply:
        raise OSError(reply["errno"], reply["error"], path)
