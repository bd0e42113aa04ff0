from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollyard.sandbox_agent.editor_tool import edit


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo\nthree\ntwo and a half\n")
    return path


def test_view_numbers_lines(notes: Path) -> None:
    assert edit("view", str(notes), {"view_range": [2, 3]}) == ("     2\ttwo\n     3\tthree", True)
    assert edit("view", str(notes), {"view_range": [4, -1]}) == ("     4\ttwo and a half", True)
    assert edit("view", str(notes), {"view_range": None})[0].count("\n") == 3


def test_view_an_empty_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "b" / "deep").touch()
    (tmp_path / "a" / "b" / "c" / "too deep").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "empty").touch()
    assert edit("view", str(tmp_path / "empty"), {}) == ("(empty file)", True)
    listing, ok = edit("view", str(tmp_path), {})
    assert ok
    assert listing.split("\n") == [f"{tmp_path}/a/", f"{tmp_path}/a/b/", f"{tmp_path}/a/file", f"{tmp_path}/empty"]
    assert not edit("view", str(tmp_path), {"view_range": [1, 2]})[1]


def test_create_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.py"
    assert edit("create", str(path), {"file_text": "x = 1\n"}) == (f"Created {path}.", True)
    path.chmod(0o755)
    assert edit("create", str(path), {"file_text": "x = 2\n"}) == (f"Replaced {path}.", True)
    assert path.read_text() == "x = 2\n"
    assert path.stat().st_mode & 0o777 == 0o755


def test_str_replace(notes: Path) -> None:
    output, ok = edit("str_replace", str(notes), {"old_str": "three\n", "new_str": "3\n4\n"})
    assert ok
    assert output == f"Edited {notes}.\n     1\tone\n     2\ttwo\n     3\t3\n     4\t4\n     5\ttwo and a half"
    assert notes.read_text() == "one\ntwo\n3\n4\ntwo and a half\n"
    assert edit("str_replace", str(notes), {"old_str": "one\n"})[1]
    assert notes.read_text() == "two\n3\n4\ntwo and a half\n"


@pytest.mark.parametrize(("line", "text"), [(0, "new\none\nend"), (1, "one\nnew\nend"), (2, "one\nend\nnew\n")])
def test_insert(tmp_path: Path, line: int, text: str) -> None:
    path = tmp_path / "file"
    path.write_text("one\nend")
    assert edit("insert", str(path), {"insert_line": line, "new_str": "new"})[1]
    assert path.read_text() == text


def test_line_ends_and_foreign_bytes_survive(tmp_path: Path) -> None:
    path = tmp_path / "dos"
    path.write_bytes(b"one\r\n\xfftwo\r\n")
    assert edit("str_replace", str(path), {"old_str": "one", "new_str": "1"})[1]
    assert edit("insert", str(path), {"insert_line": 2, "new_str": "three"})[1]
    assert path.read_bytes() == b"1\r\n\xfftwo\r\nthree\r\n"


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("A\nB", "A\nX\nB", b"caf\xe9\r\nA\r\nX\r\nB\nC"),  # as the view shows them
        ("A\nB\nC", "A\nBB\nC", b"caf\xe9\r\nA\r\nBB\nC"),  # unchanged lines keep their ends
        ("B", "BB", b"caf\xe9\r\nA\r\nBB\nC"),
        ("A", "A\nX", b"caf\xe9\r\nA\r\nX\r\nB\nC"),
        ("C", "C\nX", b"caf\xe9\r\nA\r\nB\nC\nX"),
        ("A\n", "", b"caf\xe9\r\nB\nC"),
        ("A\r\nB", "A\nB", b"caf\xe9\r\nA\nB\nC"),  # a text with a carriage return means the bytes that it has
        ("\nA\n", "\n", b"caf\xe9\r\nB\nC"),
    ],
)
def test_lines_with_carriage_returns_fit_what_the_view_shows(tmp_path: Path, old: str, new: str, after: bytes) -> None:
    path = tmp_path / "mixed"
    path.write_bytes(b"caf\xe9\r\nA\r\nB\nC")
    path.chmod(0o755)
    assert edit("str_replace", str(path), {"old_str": old, "new_str": new})[1]
    assert path.read_bytes() == after
    assert path.stat().st_mode & 0o777 == 0o755


def test_lines_that_differ_in_their_ends_only_are_two_places(tmp_path: Path) -> None:
    path = tmp_path / "mixed"
    path.write_bytes(b"a\nb\r\na\r\nb\n")
    assert "occurs 2 times" in edit("str_replace", str(path), {"old_str": "a\nb", "new_str": "x"})[0]


@pytest.mark.parametrize(
    ("line", "after"), [(0, b"1\r\n2\r\na\r\nb\n"), (1, b"a\r\n1\r\n2\r\nb\n"), (2, b"a\r\nb\n1\n2\n")]
)
def test_inserted_lines_end_as_their_neighbours(tmp_path: Path, line: int, after: bytes) -> None:
    path = tmp_path / "mixed"
    path.write_bytes(b"a\r\nb\n")
    assert edit("insert", str(path), {"insert_line": line, "new_str": "1\n2"})[1]
    assert path.read_bytes() == after


def test_an_edit_changes_no_other_byte(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    before = "\ufeffone\x0c\x1c\u2028\ttwo\nA\n".encode() + b"\xff\x00\xed\xa0\x80 no final newline"
    path.write_bytes(before)
    assert edit("str_replace", str(path), {"old_str": "\ttwo\nA", "new_str": "\ttwo\nB"})[1]
    assert path.read_bytes() == before.replace(b"\nA", b"\nB")


def test_links_and_their_targets_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\n")
    (tmp_path / "hard").hardlink_to(path)
    (tmp_path / "soft").symlink_to("file")
    assert edit("str_replace", str(tmp_path / "soft"), {"old_str": "one", "new_str": "a longer line"})[1]
    assert edit("str_replace", str(tmp_path / "hard"), {"old_str": "a longer", "new_str": "a"})[1]
    assert path.read_text() == "a line\n"
    assert (tmp_path / "soft").is_symlink()


def test_an_error_text_is_bounded(notes: Path) -> None:
    text = "x" * 128_000
    for command, path, arguments in (
        ("view", text, {}),
        (text, str(notes), {}),
        ("create", text, {"file_text": ""}),
        ("view", str(notes), {text: 1}),
        ("str_replace", f"{notes}/{text}", {"old_str": "x"}),
        ("view", str(notes), {"view_range": [10**4000, 1]}),
    ):
        output, ok = edit(command, path, arguments)
        assert not ok
        assert len(output) < 5_000


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("undo", {}, "there is no command 'undo'; the commands are: view, create, str_replace, insert"),
        ("create", {}, "`create` needs `file_text`"),
        ("insert", {}, "`insert` needs `insert_line` and `new_str`"),
        ("view", {"file_text": "x"}, "`view` does not take `file_text`; it takes `path`, `view_range`"),
        ("view", {"view_range": [1]}, "`view_range` must be a list of two integers, [first, last]"),
        ("view", {"view_range": [3, 9]}, "`view_range` [3, 9] does not fit: the file has 4 lines"),
        ("view", {"view_range": [0, 1]}, "does not fit"),
        ("insert", {"insert_line": "1", "new_str": "x"}, "`insert_line` must be an integer"),
        ("insert", {"insert_line": 5, "new_str": "x"}, "`insert_line` must be between 0 and 4"),
        ("str_replace", {"old_str": "four"}, "does not occur"),
        ("str_replace", {"old_str": "two"}, "occurs 2 times"),
        ("str_replace", {"old_str": "two"}, "in lines 2, 4; add neighbouring lines until it is unique"),
        ("str_replace", {"old_str": ""}, "`old_str` is empty; use `insert`"),
        ("create", {"file_text": 3}, "`file_text` must be a string"),
    ],
)
def test_what_a_wrong_call_is_told(notes: Path, command: str, arguments: dict[str, Any], said: str) -> None:
    before = notes.read_bytes()
    output, ok = edit(command, str(notes), arguments)
    assert not ok
    assert output.startswith("Error: ")
    assert said in output
    assert notes.read_bytes() == before


def test_half_of_a_surrogate_pair_is_a_mistake_of_the_model(notes: Path) -> None:
    half = "a\ud800"
    for path, arguments in (
        (half, {}),
        (str(notes), {"file_text": half}),
        (str(notes), {"old_str": half, "new_str": "x"}),
        (str(notes), {"file_text": "x", half: 1}),
    ):
        output, ok = edit("create", path, arguments)
        assert not ok
        assert "half of a surrogate pair" in output
        output.encode()


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes("a\fb\rc\u2028d\ntwo\nthree\n".encode())
    assert edit("view", str(path), {"view_range": [2, -1]}) == ("     2\ttwo\n     3\tthree", True)
    assert edit("insert", str(path), {"insert_line": 1, "new_str": "new"})[1]
    output, ok = edit("str_replace", str(path), {"old_str": "two", "new_str": "2"})
    assert ok
    assert output.endswith("     2\tnew\n     3\t2\n     4\tthree")
    assert path.read_bytes() == "a\fb\rc\u2028d\nnew\n2\nthree\n".encode()


def test_files_that_are_not_there_or_no_files(tmp_path: Path) -> None:
    assert edit("view", str(tmp_path / "none"), {})[0] == f"Error: {tmp_path}/none: No such file or directory."
    assert not edit("create", str(tmp_path), {"file_text": ""})[1]
    assert not edit("view", "a\0b", {})[1]
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in edit("view", str(tmp_path / "pipe"), {})[0]
    assert "not a regular file" in edit("create", str(tmp_path / "pipe"), {"file_text": "x"})[0]
    with open(tmp_path / "large", "wb") as large:
        large.truncate(200 << 20)
    assert "in bash can read and edit it" in edit("view", str(tmp_path / "large"), {})[0]
    assert edit("create", str(tmp_path / "large"), {"file_text": "x"})[1]
    assert (tmp_path / "large").read_text() == "x"
