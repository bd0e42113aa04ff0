"""Options of a throwaway cluster."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class ClusterError(Exception):
    """The cluster cannot be started; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Options:
    nodes: int = 4
    cpus: int = 8
    """CPUs of each node; the nodes share this machine, so their sum may exceed it."""
    gpus: int = 4
    """GPUs of each node; they are /dev/null under other names."""
    memory: int = 16_000
    """MB of each node. Nothing enforces it."""
    accounting: bool = False
    """MariaDB and slurmdbd: accounts, QOS, limits, preemption, sacct."""
    auth: Literal["munge", "none"] = "munge"
    """`none` trusts every user on this machine without proof."""
    rest: bool = False
    """slurmrestd, once on a Unix socket and once with JWT on a port of the loopback interface."""
    conf: tuple[str, ...] = ()
    """More lines of slurm.conf; a line replaces the default one of the same key, or of the same node or partition."""
    wrapper: tuple[str, ...] = ()
    """Prefix of each Slurm command, such as `chroot ROOT`; it must end by executing the command (exec)."""
    prefix: Path | None = None
    """A tree with another Slurm: its commands run by `chroot`, which requires root."""

    def command(self, *argv: str) -> list[str]:
        """Return a Slurm command line as it is started on this machine."""
        chroot = ("chroot", str(self.prefix)) if self.prefix is not None else ()
        return [*self.wrapper, *chroot, *argv]

    def shell_command(self) -> str:
        return shlex.join(self.command())


@dataclass(frozen=True)
class Place:
    """The cluster's folder, with its two paths."""

    folder: Path
    """Path on this machine."""
    inside: Path
    """Path for Slurm's commands; it differs only when these run in a tree that contains the folder."""

    @classmethod
    def of(cls, folder: Path, options: Options) -> Place:
        """Make the place. Raises ClusterError when the tree does not contain the folder."""
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
        """Value of SLURM_CONF."""
        return self.inside / "slurm.conf"

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.out"
