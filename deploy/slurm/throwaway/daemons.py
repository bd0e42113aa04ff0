"""The daemons of one cluster, and the file that records each one's command and process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .folder import RECORD
from .machine import SEARCH_PATH
from .options import ClusterError, Place
from .process import Process


@dataclass
class Daemon:
    argv: list[str]
    env: dict[str, str]
    process: Process | None = None

    def alive(self) -> bool:
        return self.process is not None and self.process.alive()


@dataclass
class Daemons:
    """Daemons by name: munged, mariadbd, slurmdbd, slurmctld, slurmd-n1, ..., slurmrestd, slurmrestd-jwt."""

    place: Place
    environment: dict[str, str]
    """Environment variables that a shell needs to use the cluster."""
    root: str = "/"
    """Root folder of Slurm's processes, as a path on this machine."""
    by_name: dict[str, Daemon] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Daemons | None:
        """Load the record; None when no cluster was ever started."""
        try:
            record = json.loads((folder / RECORD).read_text())
        except FileNotFoundError:
            return None
        rebooted = record["boot"] != _boot()
        daemons = {
            name: Daemon(kept["argv"], kept["env"], None if rebooted else Process(*kept["process"]))
            for name, kept in record["daemons"].items()
        }
        return cls(Place(folder, Path(record["inside"])), record["environment"], record["root"], daemons)

    def save(self) -> None:
        daemons = {
            name: {"argv": daemon.argv, "env": daemon.env, "process": [daemon.process.pid, daemon.process.started]}
            for name, daemon in self.by_name.items()
            if daemon.process is not None
        }
        record = {
            "boot": _boot(),
            "inside": str(self.place.inside),
            "environment": self.environment,
            "root": self.root,
            "daemons": daemons,
        }
        new = self.place.folder / f"{RECORD}.new"
        new.write_text(json.dumps(record, indent=1))
        new.replace(self.place.folder / RECORD)

    def add(self, name: str, argv: Sequence[str], more_env: Mapping[str, str] | None = None) -> None:
        """Start a daemon that the cluster does not have yet."""
        env = {
            "PATH": SEARCH_PATH,
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.place.conf),
        }
        self.by_name[name] = Daemon(list(argv), {**env, **(more_env or {})})
        self.start(name)

    def start(self, name: str) -> None:
        """Start the daemon with its recorded command. Raises ClusterError when it is running or its command cannot be
        found."""
        daemon = self.by_name[name]
        if daemon.alive():
            raise ClusterError(f"{name} is up already")
        program = shutil.which(daemon.argv[0], path=daemon.env["PATH"])
        if program is None:
            raise ClusterError(f"{name}: there is no command {daemon.argv[0]}")
        log = str(self.place.log(name))
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not subprocess: no process waits for a daemon, and the starting process may end before it.
        pid = os.posix_spawn(program, daemon.argv, daemon.env, file_actions=files, setsid=True)
        daemon.process = Process.of(pid)
        self.save()

    def remember_root(self) -> None:
        """Record the root of Slurm's processes: a wrapper may have moved them into another tree, by which their jobs
        are found."""
        process = self.by_name["slurmctld"].process
        self.root = process.root() if process is not None else self.root
        self.save()

    def processes(self, names: Iterable[str]) -> list[Process]:
        """Return the processes of these daemons, if they were ever started."""
        found = (self.by_name[name].process for name in names if name in self.by_name)
        return [process for process in found if process is not None]

    def dead(self) -> list[str]:
        return [name for name, daemon in self.by_name.items() if not daemon.alive()]

    def last_output(self, name: str) -> str:
        """Return the end of its output."""
        try:
            lines = self.place.log(name).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return "\n".join(f"  {line}" for line in lines[-12:]) or "  (it printed nothing)"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
