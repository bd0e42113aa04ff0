"""`rollyard tasks import swe`: what it writes and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollyard.cli.main import cli
from rollyard.kinds.swe_task import SweTask
from tests.support import swe_rows


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    lines = [swe_rows.COMPLETE, swe_rows.GYM, {"question": "What?"}, swe_rows.CLASSIC]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in lines) + "torn {\n")
    return file


def test_rows_become_lines_and_refused_rows_are_named_with_their_line(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    done = CliRunner().invoke(cli, ["tasks", "import", "swe", str(rows), "-o", str(out), "--no-environment"])
    assert done.exit_code == 0, done.output
    tasks = [json.loads(line) for line in out.read_text().splitlines()]
    assert [task.pop("metadata")["family"] for task in tasks] == ["swe-bench", "swe-gym"]
    for task in tasks:
        assert task.pop("kind") == "swe"
        SweTask.model_validate(task)
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert [line.split(": refused: ")[0] for line in said[:3]] == [f"{rows}:{number}" for number in (3, 4, 5)]
    assert said[3:5] == ["      1 converted  swe-bench", "      1 converted  swe-gym"]
    assert sum(line.startswith("      1 refused    ") for line in said) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_tasks_go_to_standard_output_by_default(rows: Path) -> None:
    done = CliRunner().invoke(cli, ["tasks", "import", "swe", str(rows), "--family", "swe-bench"])
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()] == ["swe"]


def test_without_a_task_the_exit_code_is_1_and_a_former_file_stays(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("former")
    command = ["tasks", "import", "swe", str(rows), "-o", str(tmp_path / "tasks.jsonl"), "--family", "scale-swe"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1
    assert (tmp_path / "tasks.jsonl").read_text() == "former"


def test_the_group_shows_its_commands() -> None:
    assert "import" in CliRunner().invoke(cli, ["tasks", "--help"]).output
    said = CliRunner().invoke(cli, ["tasks", "import", "swe", "--help"]).output
    assert "swe-rebench" in said
