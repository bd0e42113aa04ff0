"""Process 1 of the container in which a RUN of a Dockerfile is done: runs one command as if it were root, with one user.

Its standard input is a pipe: a line of JSON that says what to run, and then nothing until the builder ends. If the builder
dies, the pipe ends, and with process 1 the kernel ends all others.

A container without root has one user and one group. So calls that change the owner of a file or the user of a process, and
those that make device files, are answered as if they had worked, and have no effect. The program apt is told by a
configuration file not to change its user. Nothing waits for the disk either, because a build that does not end is repeated.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys

from rollyard.sandbox_agent.syscall_filter import pretend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_APT = "/dev/rollyard-apt.conf"
_SCRIPT = "/dev/rollyard-step"
_CERTIFICATES = "/dev/rollyard-ca.pem"
_TRUSTING = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Variables that tell programs which file has the CA certificates."""


def main() -> None:
    line = _first_line()
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        _become(job)
    sys.exit(_wait(child))


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            os._exit(1)
        line += piece
    return line


def _become(job: dict[str, Any]) -> None:
    """Run the command in place of this process."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setpgid(0, 0)
        environment = job["env"]
        apt = 'APT::Sandbox::User "root";\n'
        if job.get("certificates"):
            with open(_CERTIFICATES, "w") as file:
                file.write(job["certificates"])
            apt += f'Acquire::https::CAInfo "{_CERTIFICATES}";\n'
            for name in _TRUSTING:
                environment.setdefault(name, _CERTIFICATES)
        with open(_APT, "w") as file:
            file.write(apt)
        environment.setdefault("APT_CONFIG", _APT)
        if job["script"] is not None:
            with open(_SCRIPT, "w") as file:
                file.write(job["script"])
            os.chmod(_SCRIPT, 0o755)
        os.umask(0o022)
        os.chdir(job["folder"])
        pretend()
        os.execvpe(job["argv"][0], job["argv"], environment)
    except OSError as error:
        advice = "the image may lack this program"
        if error.errno == errno.E2BIG:
            advice = (
                "an argument or a variable may have 128 KiB, and all together 2 MiB: COPY a file with the text instead"
            )
        os.write(2, f"{job['argv'][0]}: {error.strerror}: {advice}\n".encode())
    os._exit(127)


def _wait(child: int) -> int:
    """Return the child's exit status. Other processes of the container that end are only collected."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == child:
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        ready, _, _ = select.select([woken, 0], [], [])
        if woken in ready:
            os.read(woken, 512)
        if 0 in ready and not os.read(0, 512):
            os._exit(1)


if __name__ == "__main__":
    main()
