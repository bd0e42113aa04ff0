"""Files of rows, in each form that data sets come in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rollyard.core.errors import BadRequest
from rollyard.tasks.rows.row_file import numbered_rows

ROWS = [{"a": "x", "b": ["1", "2"], "c": {"d": None}}, {"a": "y", "b": [], "c": {"d": 2}}]


def test_json_lines_keep_the_number_of_their_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"\n{json.dumps(ROWS[0])}\nno JSON\n\n{json.dumps(ROWS[1])}")
    found = dict(numbered_rows(file))
    assert (found[2], found[5]) == (ROWS[0], ROWS[1])
    assert isinstance(found[3], ValueError)
    assert {*found} == {2, 3, 5}


def test_a_line_that_is_nested_too_deeply_is_an_error_of_this_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a":' * 50_000 + f"\n{json.dumps(ROWS[0])}\n")
    found = dict(numbered_rows(file))
    assert isinstance(found[1], ValueError)
    assert (str(found[1]), found[2]) == ("its lists and objects are nested too deeply", ROWS[0])


def test_a_json_list_and_parquet_have_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for name in ("rows.json", "rows.parquet"):
        assert list(numbered_rows(tmp_path / name)) == [(1, ROWS[0]), (2, ROWS[1])]


@pytest.mark.parametrize("content", [b"[1, 2", b"PAR1", b"PAR1 and more that is no Parquet PAR1"])
def test_a_torn_file_is_an_error_with_its_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(BadRequest, match="rows"):
        list(numbered_rows(tmp_path / "rows"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "pyarrow.py").write_text("raise ImportError\n")
    program = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
from rollyard.tasks.rows.row_file import numbered_rows
list(numbered_rows(pathlib.Path(sys.argv[1])))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "rows.parquet"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "pip install pyarrow" in done.stderr
