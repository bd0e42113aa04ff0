"""A server of a recorded training. It ends, and its folder is deleted, when the process that started it ends, however.

    python -m rollyard.page_proxy.recorded_server RECORDING

Prints the path of the kubeconfig, and waits for the end of its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.core.process_tree import die_with

STOP_SECONDS = 20.0


@contextlib.contextmanager
def served_recording(recording: Path) -> Iterator[Path]:
    """Serve a recording from a temporary folder; yield the kubeconfig. Raises Unavailable if the server does not start."""
    command = [sys.executable, "-m", "rollyard.page_proxy.recorded_server", str(recording)]
    keeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # in a session of its own, because Ctrl-C is for the proxy alone
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        if not (line := keeper.stdout.readline().strip()):
            raise Unavailable("the server of the recorded training did not start; the lines above say why")
        yield Path(line)
    finally:
        keeper.stdin.close()
        keeper.wait(2 * STOP_SECONDS)
        keeper.stdout.close()


def main(recording: Path) -> int:
    from rollyard.page_proxy.recording import read, restore

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the terminal also ends the process that started this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that server and folder are ended
    with tempfile.TemporaryDirectory(prefix="rollyard-recorded-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        asyncio.run(restore(*read(recording, folder / "model"), folder / "data"))
        command = [
            sys.executable,
            "-m",
            "rollyard.cli.main",
            "serve",
            "--data",
            str(folder / "data"),
            "--cluster",
            "local",
        ]
        with open(folder / "log", "w+") as log:
            # ~/.rollyard links to the newest server; the user's own link stays unchanged
            environment = {**os.environ, "HOME": name}
            server = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=partial(die_with, os.getpid()),
            )
            try:
                assert server.stdout is not None
                if not (line := server.stdout.readline()):
                    log.seek(0)
                    sys.stderr.write(log.read()[-3000:])
                    return 1
                sys.stdout.write(json.loads(line)["kubeconfig"] + "\n")
                sys.stdout.flush()
                sys.stdin.read()
            finally:
                server.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(STOP_SECONDS)
                server.kill()
                server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
