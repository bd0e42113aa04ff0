from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rollyard import __version__
from tests.support.forked_commands import ForkedProcess


def test_a_fork_has_an_output_and_an_exit_status_of_its_own() -> None:
    process = ForkedProcess("version", env=os.environ, stderr=2)
    assert process.wait(120) == 0
    assert __version__ in process.stdout.read()
    process.stdout.close()


def test_a_fork_can_be_waited_for_ended_and_killed(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        server = ForkedProcess("serve", "--data", str(tmp_path / "data"), "--cluster", "local", env=env, stderr=2)
        assert '"serving"' in server.stdout.readline()
        assert server.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0)
        (server.terminate if number == signal.SIGTERM else server.kill)()
        assert server.wait(120) == code
        assert server.poll() == code
        assert not Path(f"/proc/{server.pid}").exists()
        server.stdout.close()
