"""The folder of a process in the node-local scratch."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.engine.process.scratch_folder import scratch_folder

PROGRAM = """
import sys, time
from pathlib import Path
from rollyard.engine.process.scratch_folder import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    time.sleep(300)
"""


def test_a_folder_is_private_and_goes_with_its_process(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_and_what_lives_is_not(tmp_path: Path) -> None:
    (tmp_path / "ry-someones").mkdir()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    other = Path(process.stdout.readline().strip())
    try:
        with scratch_folder(tmp_path) as mine:
            assert other.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert other.exists()
    with scratch_folder(tmp_path) as mine:
        assert {f.name for f in tmp_path.iterdir()} == {mine.name, "ry-someones"}


def test_a_base_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), scratch_folder(tmp_path / "nowhere"):
        pass
