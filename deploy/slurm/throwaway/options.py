"""What a throwaway cluster is asked to be."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class ClusterError(Exception):
    """The cluster cannot be had; the message says why and what one can do."""


@dataclass(frozen=True)
class Options:
    nodes: int = 4
    cpus: int = 8
    """Of each node; the nodes share this machine, so they may promise more than it has."""
    gpus: int = 4
    """Of each node; they are /dev/null under other names."""
    memory: int = 16_000
    """MB of each node. Nothing enforces it."""
    accounting: bool = False
    """MariaDB and slurmdbd: accounts, QOS, limits, preemption, sacct."""
    auth: Literal["munge", "none"] = "munge"
    """`none` believes everybody on this machine who they say they are."""
    rest: bool = False
    """slurmrestd, once on a Unix socket and once with JWT on a port of the loopback interface."""
    conf: tuple[str, ...] = ()
    """More lines of slurm.conf; a line replaces ours of the same key, or of the same node or partition."""
    wrapper: tuple[str, ...] = ()
    """Put before each command of Slurm, such as `chroot ROOT`; it has to end up as the command (exec)."""
    prefix: Path | None = None
    """A tree that has another Slurm: its commands run by `chroot`, which takes root."""

    def command(self, *argv: str) -> list[str]:
        """A command line of Slurm's as it is started on this machine."""
        chroot = ("chroot", str(self.prefix)) if self.prefix is not None else ()
        return [*self.wrapper, *chroot, *argv]

    def shell_command(self) -> str:
        return shlex.join(self.command())


@dataclass(frozen=True)
class Place:
    """The cluster's folder, by both of its names."""

    folder: Path
    """On this machine."""
    inside: Path
    """To the commands of Slurm; another name only where these run in a tree that holds the folder."""

    @classmethod
    def of(cls, folder: Path, options: Options) -> Place:
        """Raises ClusterError where the tree does not show the folder."""
        folder = folder.absolute()
        if options.prefix is None:
            return cls(folder, folder)
        tree = options.prefix.absolute()
        if folder.is_relative_to(tree):
            return cls(folder, Path("/") / folder.relative_to(tree))
        seen = tree / folder.relative_to("/")
        if not (seen.exists() and seen.samefile(folder)):
            raise ClusterError(f"{tree} does not show {folder}: take a folder below it, or bind-mount this one there")
        return cls(folder, folder)

    @property
    def conf(self) -> Path:
        """What SLURM_CONF says."""
        return self.inside / "slurm.conf"

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.out"
