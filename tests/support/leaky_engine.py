"""A child of an engine that holds on: it has a session of its own, a port and a file in /dev/shm.

    python -m tests.support.leaky_engine FOLDER PORT SHM_NAME [--orphan]

It ignores TERM and HUP. With --orphan it is a grandchild whose parent has gone. As soon as it holds everything, it writes
its pid into FOLDER.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollyard.slurm.process_identity import start_time

ROOT = Path(__file__).resolve().parents[2]
SIZE = 8 << 20


@dataclass(frozen=True)
class Leak:
    """Things that such children hold."""

    folder: Path
    """Folder with a file for each child that was started."""
    port: int
    name: str
    """Name of the file in /dev/shm."""

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", __name__, str(self.folder), str(self.port), self.name, *options]

    @property
    def children(self) -> list[int]:
        """Pids of all children that were started, the first one first."""
        files = [file for file in self.folder.iterdir() if file.suffix == ".pid"]
        return [int(file.stem) for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.children if start_time(pid) is not None]

    @property
    def file(self) -> Path:
        return Path("/dev/shm", self.name)

    def held(self) -> str:
        """Describe what is still held; empty if nothing is."""
        found: Iterable[str] = [f"processes {self.alive}"] if self.alive else []
        return ", ".join([*found, *self._port_held(), *([str(self.file)] if self.file.exists() else [])])

    def _port_held(self) -> list[str]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                return [f"port {self.port}: {error.strerror}"]
        return []


START = """
import json, os, pathlib, subprocess, sys, time
if "rollyard.engine.embedded" in sys.orig_argv:
    known = set(os.listdir(os.environ["LEAK_FOLDER"]))
    child = subprocess.Popen(json.loads(os.environ["LEAK_COMMAND"]), cwd=os.environ["LEAK_ROOT"])
    while not (new := set(os.listdir(os.environ["LEAK_FOLDER"])) - known):
        time.sleep(0.02)
    if any(name.endswith(".failed") for name in new):
        os._exit(1)
    child.wait()
"""
"""A sitecustomize.py by which each embedded engine starts such a child first, and fails if the child cannot hold all."""


def leaking(leak: Leak, folder: Path) -> dict[str, str]:
    """Return the variables of an allocation whose engines have such a child; `folder` gets a module of Python."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(START)
    command = json.dumps(leak.command("--orphan"))
    return {
        "PYTHONPATH": str(folder),
        "LEAK_FOLDER": str(leak.folder),
        "LEAK_ROOT": str(ROOT),
        "LEAK_COMMAND": command,
    }


def new_leak(folder: Path, name: str = "") -> Leak:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    folder.mkdir(exist_ok=True)
    return Leak(folder, port, name or f"psm_ry{os.getpid()}_{port}")


def main(folder: Path, port: int, name: str, orphan: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0 if orphan else abs(os.waitstatus_to_exitcode(os.wait()[1])))
    os.setsid()
    try:
        memory = _hold(port, name)
    except OSError:
        (folder / f"{os.getpid()}.failed").touch()
        raise
    (folder / f"{os.getpid()}.pid").touch()
    while memory:
        time.sleep(1000)


def _hold(port: int, name: str) -> tuple[socket.socket, mmap.mmap]:
    listener = socket.create_server(("127.0.0.1", port))
    file = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(file, SIZE)
    memory = mmap.mmap(file, SIZE)
    memory[:SIZE] = b"x" * SIZE
    os.close(file)
    return listener, memory


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], "--orphan" in sys.argv)
