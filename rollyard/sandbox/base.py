"""Sandbox specifications, results of sandbox calls, and the interface of a runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.kinds.values.image_reference import ImageReference
from rollyard.sandbox.gpus import Gpu
from rollyard.sandbox.printed_output import NOTHING, PrintedOutput
from rollyard.sandbox.starter.client import Launch

OWN = "/opt/rollyard"
"""Folder of our Python and the sandbox agent inside every sandbox."""
BLOCK = 4096
"""Bytes of a file's first block. A tmpfs gets as many inodes as it has blocks."""


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox. Exceeding a limit shows in a tool result, and is never an infrastructure error.

    Each limit and how it is enforced:

    - `processes`: processes and threads of the whole sandbox together; the kernel enforces the limit.
    - `memory_bytes`: memory of all processes and files of the sandbox together. The memory guard ends the largest
      processes of a sandbox that has more. The address space of each process has the same limit, and the kernel
      enforces this one.
    - `disk_bytes`: the length of each file, and the sum of all data written in the sandbox. The data is in memory. A
      sandbox can have one file for each `BLOCK` of this size.
    - `terminals`: pseudo-terminals. The kernel enforces this limit, and the limit of files.
    - A process has at most 1024 open files.
    - `cpus`: the sandbox is bound to this number of the node agent's CPUs, rounded up. Programs in the sandbox see only
      these CPUs. A program can undo the limit by setting its own affinity.
    """

    cpus: float = 1.0
    memory_bytes: int = 2 << 30
    disk_bytes: int = 1 << 30
    processes: int = 256
    terminals: int = 64

    @property
    def files(self) -> int:
        return self.disk_bytes // BLOCK


@dataclass(frozen=True)
class SandboxSpec:
    """Image and limits of a sandbox. `image`: None for the default image: this machine's own /usr, read-only, in a small root
    folder. The default image needs no download."""

    image: ImageReference | None
    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    """True: the sandbox has the node's network. False: it has only a loopback of its own."""
    allowed_hosts: tuple[HostPattern, ...] = ()
    """Hosts that the sandbox can reach through the egress proxy."""
    user: str | None = None
    """The user that programs are; None: the one that the image names."""
    workdir: str | None = None
    """Folder in which the tools start; None: the image's working folder."""
    gpus: int = 0
    """Number of the allocation's GPUs that the sandbox gets. With GPUs the address space of its processes has no limit,
    because CUDA reserves more of it than the node has memory."""


@dataclass(frozen=True)
class CommandResult:
    """The result of a bash command. `exit_code`: None if the command did not end. `restarted`: the shell's state is lost.
    `notes`: sentences about processes that were ended during the call, because the sandbox reached a limit. `printed`:
    the bytes of `output`, for those who have followed `Sandbox.printed`."""

    output: str
    exit_code: int | None
    timed_out: bool
    restarted: bool
    seconds: float
    notes: Sequence[str] = ()
    printed: PrintedOutput = NOTHING


@dataclass(frozen=True)
class CellResult:
    """The result of a cell: all printed output, then its value or traceback. `restarted`: the state of Python is lost.
    `notes`: as in CommandResult."""

    output: str
    error: bool
    timed_out: bool
    restarted: bool
    seconds: float
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class EditResult:
    """The reply to an editor call. `ok` is False if the file or the arguments did not allow the call."""

    output: str
    ok: bool


@dataclass(frozen=True)
class Root:
    """The root file system of a sandbox, as folders on this machine. A sandbox can change all of it, and the changes are
    discarded when the sandbox ends."""

    layers: Sequence[Path]
    """Folders that together are the image (`images/layer_stack.py`), the topmost first. No two of them are one."""
    own: str
    """Place of our Python. Programs find it as `OWN`, of which a part may be a symbolic link in the image."""
    folders: Mapping[str, int]
    """Folders that a sandbox has although the image may lack them, with their modes. These paths and `own` are relative, and
    lead through no symbolic link."""
    binds: tuple[str, ...] = ()
    """Host paths that appear read-only at the same path. The default image gets its programs from such paths."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The image's environment variables. PS1 and PROMPT_COMMAND have no effect."""
    workdir: str | None = None
    """The image's working folder, in which the tools start; None: /workspace."""
    user: str = "0"
    """The user that programs are in the sandbox, as the image names it."""


class Runtime(Protocol):
    """Builds the command lines of one container runtime. Callers run each command line under the account that
    `sandbox_account()` returns.

    The parts around a runtime rely on what a sandbox of it has: PID, user and mount namespaces of its own, so that the end
    of process 1 ends all (`launcher.py`, the system call filter, the limit of processes, the memory guard); the folder `OWN`
    with the sandbox agent; a writable root with /workspace, whose changes a snapshot can find.
    """

    @property
    def name(self) -> str:
        """Name as in a pool's `sandbox.runtime`: apptainer, singularity or bubblewrap."""

    @property
    def shortage(self) -> str:
        """End of a sentence about what sandboxes cannot do with an image on this node; empty if they can do all."""

    def command(
        self,
        root: Root,
        limits: Limits,
        own: Path,
        argv: Sequence[str],
        *,
        host_network: bool = False,
        gpus: Sequence[Gpu] = (),
    ) -> Launch:
        """Return the launcher, which runs `argv` as process 1 of a new sandbox with the folder `own` at `OWN`. `gpus`:
        GPUs that the sandbox gets."""
