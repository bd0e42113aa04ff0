"""Tests of the owner of a test run."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAEMON = """
import os, pathlib, sys, tempfile, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon: the parents end, and it stays
        pathlib.Path(tempfile.mkdtemp(), "closed").mkdir(mode=0)
        pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {tempfile.gettempdir()}")
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
WAITS = DAEMON + "print('ready', flush=True)\ntime.sleep(1000)\n"


def _owned(program: str, said: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.owned_run", sys.executable, "-c", program, str(said)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _nothing_left(said: Path) -> None:
    pid, folder = said.read_text().split()
    assert not Path("/proc", pid).exists()
    assert not Path(folder).exists()


def test_a_daemon_and_a_folder_that_a_run_leaves_are_removed_and_told(tmp_path: Path) -> None:
    run = _owned(DAEMON, tmp_path / "said")
    _, complaints = run.communicate(timeout=120)
    assert run.returncode == 0
    assert complaints.startswith("the tests left 1 processes running, now killed: python")
    _nothing_left(tmp_path / "said")


SCRATCH = """
import pathlib, sys, tempfile
folder = pathlib.Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))
(folder / "lock").touch()
pathlib.Path(sys.argv[1]).write_text(str(folder))
"""


def test_the_scratch_folder_of_a_killed_model_server_is_removed_and_an_older_one_stays(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ry-", dir="/tmp") as older:
        Path(older, "lock").touch()
        run = _owned(SCRATCH, tmp_path / "said")
        run.communicate(timeout=120)
        assert run.returncode == 0
        assert not Path((tmp_path / "said").read_text()).exists()
        assert Path(older, "lock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    run = _owned(WAITS, tmp_path / "said")
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.send_signal(number)
    run.communicate(timeout=120)
    assert run.returncode == 128 + number
    _nothing_left(tmp_path / "said")


ORPHAN = """
import os, pathlib, sys, time
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(writing, str(os.getpid()).encode())
        os._exit(0)
    os._exit(0)
os.wait()
orphan = pathlib.Path("/proc", os.read(reading, 20).decode())
while orphan.exists():  # as a zombie, if nobody reaps it
    time.sleep(0.01)
pathlib.Path(sys.argv[1]).write_text("reaped")
"""


def test_an_orphan_that_has_ended_is_gone(tmp_path: Path) -> None:
    run = _owned(ORPHAN, tmp_path / "said")
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert (tmp_path / "said").read_text() == "reaped"
