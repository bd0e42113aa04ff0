"""What a sandbox is asked for, what its calls answer, and what a runtime has to offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

OWN = "/opt/rollyard"
"""Where our Python, and the agent with it, lies inside every sandbox."""
WORKSPACE = "/workspace"
HOME = "/home/agent"


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Going beyond is the task's own outcome: a tool result, never an error of ours.

    What is enforced, and how:

    - `processes`: processes and threads of the whole sandbox together, by the kernel.
    - `memory_bytes`: address space of each process; the sum over processes is for the job's cgroup to cap.
    - `disk_bytes`: the length of each file; and with Apptainer everything written in the sandbox together, with bubblewrap
      each of /workspace, /home/agent, /tmp, /var/tmp and /dev/shm by itself. With bubblewrap, changes that a sandbox made
      from a folder image writes elsewhere (they live in memory) are not capped. An Apptainer that a site installed with
      setuid applies its own `sessiondir max size` instead.
    - `cpus`: the sandbox is put on so many of the CPUs this process may use, rounded up. It decides what programs count as
      available; a program that sets its own affinity can undo it.
    """

    cpus: float
    memory_bytes: int
    disk_bytes: int
    processes: int = 256


@dataclass(frozen=True)
class SandboxSpec:
    """One kind of sandbox. `image` is a `.sif` file, a folder with a root file system, or None for the default image:
    this machine's own /usr, read-only, under an empty root; it costs no download."""

    image: str | None
    limits: Limits
    network: Literal["none"] = "none"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandResult:
    """A bash command's end. `exit_code` is None when it did not end by itself; `restarted`: the shell's state is lost."""

    output: str
    exit_code: int | None
    timed_out: bool
    restarted: bool
    seconds: float


@dataclass(frozen=True)
class CellResult:
    """A cell's end: all it printed, then its value or its traceback; `restarted`: the Python process's state is lost."""

    output: str
    error: bool
    timed_out: bool
    restarted: bool
    seconds: float


@dataclass(frozen=True)
class EditResult:
    """An editor call's answer; not `ok` when the file or the arguments did not allow it."""

    output: str
    ok: bool


@dataclass(frozen=True)
class Root:
    """The root file system of a sandbox, as a folder on this machine."""

    folder: Path
    mount_points: Path
    """A folder with nothing but the mount points that an image may lack."""
    binds: tuple[str, ...] = ()
    """Host paths seen read-only at the same place; they make the default image."""
    empty: tuple[str, ...] = (WORKSPACE, HOME)
    """Folders that start empty and writable."""
    read_only: bool = False
    """Nothing of `folder` may change; otherwise each sandbox has its own changes, gone with it."""


class Runtime(Protocol):
    """Builds the command lines of one sandbox program. Every command runs as `account.sandbox_account()`."""

    @property
    def name(self) -> str:
        """As in a pool's `sandbox.runtime`: apptainer, singularity or bubblewrap."""

    def command(self, root: Root, limits: Limits, own: Path, argv: Sequence[str]) -> list[str]:
        """The launcher's argv that runs `argv` as process 1 of a new sandbox, with the folder `own` at `OWN`."""

    def unpack(self, image: Path, folder: Path) -> list[str]:
        """The argv that unpacks a `.sif` into the empty `folder`; raises ImageNotFound where it cannot be read."""
