"""Commands of `rollyard` without the time of their imports: one process has imported all commands, and forks for each.

A command has arguments, environment, folder and standard streams of its own. In /proc it has those of the process that
forked it, so a test that looks for a command there must start it itself, or know its pid (`ForkedProcess`)."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_INPUT = 1 << 20
_ENDS_WITH_ITS_TEST_RUN = 0
"""File descriptor of the forking process: the socket of the test run, whose end is the end of both."""


def run(*words: str, env: Mapping[str, str], text: str = "", seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `rollyard WORDS` in the repository's root."""
    assert len(text.encode()) <= MOST_INPUT
    pipes = [os.pipe() for _ in range(4)]
    (read_in, write_in), *outputs = pipes
    fcntl.fcntl(write_in, fcntl.F_SETPIPE_SZ, MOST_INPUT)
    os.write(write_in, text.encode())
    os.close(write_in)
    _ask({"words": words, "env": dict(env)}, [read_in, *(write for _, write in outputs)])
    ours = [read for read, _ in outputs]
    try:
        out, err, told = (data.decode() for data in _read_all(ours, seconds))
    except TimeoutError:
        raise subprocess.TimeoutExpired(words, seconds) from None
    finally:
        for fd in ours:
            os.close(fd)
    return subprocess.CompletedProcess(["rollyard", *words], int(told or -signal.SIGKILL), out, err)


class ForkedProcess:
    """`rollyard WORDS` in the repository's root, while it runs. It has the methods of `subprocess.Popen` that tests use."""

    def __init__(self, *words: str, env: Mapping[str, str], stderr: int) -> None:
        """`stderr`: file descriptor."""
        (read_out, write_out), (self._told, write_told) = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        request = {"words": words, "env": dict(env), "tells_pid": True}
        _ask(request, [null, write_out, os.dup(stderr), write_told])
        self.stdout = os.fdopen(read_out)
        self.pid = int(os.read(self._told, _PID_DIGITS))
        self._pidfd = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("rollyard", timeout or 0.0)
        return code

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], seconds)[0]:
            self.returncode = int(os.read(self._told, 8) or -signal.SIGKILL)
            os.close(self._told)
            os.close(self._pidfd)
        return self.returncode


_PID_DIGITS = 10


def _ask(request: Mapping[str, object], given: list[int]) -> None:
    """Ask for a fork with these file descriptors: the standard streams, and a pipe for the exit status. Close them here."""
    socket.send_fds(_forking()[0], [json.dumps(request).encode()], given)
    for fd in given:
        os.close(fd)


PROGRAM = """#!{python} -SE
import json, os, socket, sys
if sys.argv[1:2] == ["serve"]:  # a process that is looked for, and is sent signals
    os.execv({rollyard!r}, [{rollyard!r}, *sys.argv[1:]])
read, write = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect({path!r})
    socket.send_fds(asking, [json.dumps({{"words": sys.argv[1:], "env": dict(os.environ)}}).encode()], [0, 1, 2, write])
os.close(write)
sys.exit(int(os.read(read, 8) or 1))
"""


@contextlib.contextmanager
def as_program(folder: Path) -> Iterator[Path]:
    """Write a program `rollyard` for the PATH of scripts that run in the repository's root; return its folder."""
    path, program = folder / "commands.socket", folder / "rollyard"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        ours = str(Path(sys.executable).with_name("rollyard"))
        program.write_text(PROGRAM.format(python=sys.executable, rollyard=ours, path=str(path)))
        program.chmod(0o755)
        passing = threading.Thread(target=_pass_on, args=(listening,))
        passing.start()
        try:
            yield folder
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            passing.join()


def _pass_on(listening: socket.socket) -> None:
    """Pass the requests of programs to the forking process, until the socket is shut down."""
    with contextlib.suppress(OSError):
        while True:
            asked, _ = listening.accept()
            with asked:
                request, fds, _, _ = socket.recv_fds(asked, MOST_INPUT, 4)
                socket.send_fds(_forking()[0], [request], fds)
                for fd in fds:
                    os.close(fd)


def _read_all(fds: list[int], seconds: float) -> list[bytes]:
    deadline, found = time.monotonic() + seconds, {fd: bytearray() for fd in fds}
    with selectors.DefaultSelector() as selector:
        for fd in fds:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    return [bytes(data) for data in found.values()]


@functools.cache
def _forking() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start this test run's forking process, which ends with the test run; return its socket too."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen([sys.executable, "-m", __name__], stdin=its, cwd=ROOT)
    atexit.register(process.wait)
    atexit.register(ours.close)  # runs first, and ends the process
    return ours, process


def main() -> None:
    from rollyard.cli.main import COMMANDS

    for module in {module for module, _ in COMMANDS.values()}:
        importlib.import_module(f"rollyard.cli.{module}")
    importlib.import_module("rollyard.server_process.main")
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(_ENDS_WITH_ITS_TEST_RUN)) as asked:
        while True:
            request, fds, _, _ = socket.recv_fds(asked, MOST_INPUT, 4)
            if not request:
                return
            if os.fork() == 0:
                asked.close()
                _become(json.loads(request), fds)
            for fd in fds:
                os.close(fd)


def _become(request: dict[str, object], fds: list[int]) -> None:
    from rollyard.cli.main import main as rollyard

    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        *streams, status = fds
        os.set_inheritable(status, False)
        if request.get("tells_pid"):
            os.write(status, f"{os.getpid():{_PID_DIGITS}}".encode())
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        sys.argv = ["rollyard", *request["words"]]  # type: ignore[misc]
        try:
            rollyard()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os.write(status, str(code).encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
