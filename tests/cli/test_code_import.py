"""`rollyard tasks import code`: what it writes and what it says."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from rollyard.cli.main import cli
from tests.tasks.code_rows.test_conversion import BENCH, EVAL


def test_rows_become_lines_and_refused_rows_are_named_with_their_line(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in (BENCH, {"x": 1}, EVAL)))
    done = CliRunner().invoke(cli, ["tasks", "import", "code", str(file), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["metadata"]["family"] for line in out.read_text().splitlines()] == [
        "livecodebench",
        "humaneval",
    ]
    assert done.stderr.startswith(f"{file}:2: refused: no family has rows with the fields x")
