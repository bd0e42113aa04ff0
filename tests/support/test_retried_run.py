"""Tests of the run whose failed tests run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

def test_right():
    pass

def test_first_time_wrong():
    seen = Path("seen")
    again = seen.exists()
    seen.touch()
    assert again

def test_wrong():
    assert {right}
"""
WAITING = """
import time, pytest

@pytest.fixture
def held():
    yield
    print("fixture ended")

def test_waits(held):
    print("waiting", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize(("right", "status", "says"), [(True, 0, "UNSTABLE"), (False, 1, "1 failed, 1 passed")])
def test_what_fails_once_is_named_and_what_fails_twice_fails_the_run(
    tmp_path: Path, right: bool, status: int, says: str
) -> None:
    ended = _run(tmp_path, TESTS.format(right=right))
    assert ended.returncode == status
    assert says in ended.stdout
    assert "once more, by themselves: test_some.py::test_first_time_wrong" in ended.stdout


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    ended = _run(tmp_path, "\n".join(f"def test_{i}():\n    assert False\n" for i in range(4)))
    assert ended.returncode == 1
    assert "once more" not in ended.stdout


def _run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "tests.support.retried_run", "-p", "no:xdist", "test_some.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_an_interruption_reaches_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(WAITING)
    command = [sys.executable, "-m", "tests.support.retried_run", "-s", "-p", "no:xdist", "test_some.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert any("waiting" in line for line in run.stdout)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=120)
    assert "fixture ended" in said
    assert "once more" not in said
    assert run.returncode == pytest.ExitCode.INTERRUPTED
