"""Owner of everything that a test run starts and writes.

    python -m tests.support.owned_run COMMAND...

Processes that leave their parents become children of the owner (PR_SET_CHILD_SUBREAPER), so none escapes: servers, Slurm
daemons, jobs. When the command ends, the owner kills what is left and deletes the run's temporary folder. SIGINT and
SIGTERM interrupt the command first, so that its fixtures can end what they began.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollyard.core.process_tree import adopt_orphans, kill_below
from rollyard.engine.process.scratch_folder import PREFIX
from rollyard.host.removed_folder import remove_folder

GRACE_SECONDS = 60
"""Time for the command to end after it was interrupted."""


def main(command: list[str]) -> int:
    adopt_orphans()
    older = _scratch()
    folder = _new_folder()
    folder.chmod(0o1777)  # tests run programs as other users too
    interrupted: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: interrupted.append(got))
    # in a session of its own, so that ^C reaches it once: from here
    run = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True)
    try:
        status = _wait(run, interrupted)
    finally:
        left, _ = kill_below(GRACE_SECONDS)
        remove_folder(folder)
        _remove_scratch(older)
    if left and not interrupted:
        print(f"the tests left {len(left)} processes running, now killed: {'; '.join(sorted(left))}", file=sys.stderr)
    return 128 + interrupted[0] if interrupted else status


def _new_folder() -> Path:
    """Make a folder with a name of few characters: below it stand sockets, whose paths may have 107."""
    while True:
        folder = Path(tempfile.gettempdir(), f"r{secrets.token_hex(2)}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _scratch() -> set[Path]:
    """Return the scratch folders of model servers. They are in /tmp itself, so that the paths of their sockets are short."""
    return set(Path("/tmp").glob(f"{PREFIX}*"))


def _remove_scratch(older: set[Path]) -> None:
    """Remove those that killed model servers have left. The lock of one that somebody uses is held."""
    for folder in _scratch() - older:
        with contextlib.suppress(OSError), (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)


def _wait(run: subprocess.Popen[bytes], interrupted: list[int]) -> int:
    """Wait for the command; after an interruption for GRACE_SECONDS at most. Orphans that end are reaped, as init does:
    tests wait until a process is gone."""
    deadline = None
    while True:
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == run.pid:
                run.returncode = os.waitstatus_to_exitcode(ended[1])
                return run.returncode
        time.sleep(0.02)
        if interrupted and deadline is None:
            print(f"interrupted: the tests end what they began, within {GRACE_SECONDS} s", file=sys.stderr)
            run.send_signal(signal.SIGINT)
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return 1


if __name__ == "__main__":
    if shutil.which(sys.argv[1]) is None:
        sys.exit(f"{sys.argv[1]}: not found")
    sys.exit(main(sys.argv[1:]))
