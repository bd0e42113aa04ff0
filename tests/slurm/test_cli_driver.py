"""The cli driver with commands that answer oddly; scripts stand in for Slurm's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollyard.core.errors import SlurmUnreachable, SubmitRefused
from rollyard.slurm.base import BatchScript, JobIds
from rollyard.slurm.cli_driver import CliDriver


def driver(folder: Path, command: str, text: str) -> CliDriver:
    """One for which this command is a shell script of this text."""
    (folder / command).write_text(f"#!/bin/bash\n{text}\n")
    (folder / command).chmod(0o755)
    return CliDriver({**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})


def script(folder: Path, *, tasks: int | None = None) -> BatchScript:
    array = "" if tasks is None else f"#SBATCH --array=0-{tasks - 1}\n"
    return BatchScript("rollyard-x", "rollyard:s:u", f"#!/bin/bash\n{array}true\n", str(folder))


@pytest.mark.parametrize(
    ("text", "tasks", "ids", "complaint"),
    [
        ("echo 7", None, ["7"], ""),
        ("echo '7;other'", 2, ["7_0", "7_1"], ""),
        ("echo 7; echo 'sbatch: error: no X11' >&2; exit 1", 2, ["7_0", "7_1"], "exit code 1: no X11"),
        ("echo 7; echo 'sbatch: error: Socket timed out' >&2; exit 1", None, ["7"], "exit code 1: Socket timed out"),
        ("echo 'site: welcome'; echo 7; exit 3", None, ["7"], "exit code 3: it printed nothing"),
    ],
)
async def test_an_id_that_sbatch_printed_counts_whatever_its_exit_code(
    tmp_path: Path, text: str, tasks: int | None, ids: list[str], complaint: str
) -> None:
    found = await driver(tmp_path, "sbatch", text).submit(script(tmp_path, tasks=tasks))
    assert found == ids
    assert isinstance(found, JobIds)
    assert found.complaint == (f"sbatch ended with {complaint}" if complaint else "")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("echo 'sbatch: error: Invalid qos' >&2; exit 1", SubmitRefused, "Invalid qos"),
        ("echo 'sbatch: error: Socket timed out' >&2; exit 1", SlurmUnreachable, "Socket timed out"),
        ("exit 0", SlurmUnreachable, "not a job id"),
        ("echo '<html>502</html>'; exit 0", SlurmUnreachable, "not a job id"),
    ],
)
async def test_without_an_id_the_exit_code_decides(
    tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await driver(tmp_path, "sbatch", text).submit(script(tmp_path))
