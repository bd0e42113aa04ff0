"""The table of docs/compatibility.md is what the tests stored, and each of its tests is there."""

from __future__ import annotations

import pytest

from tests.support.compatibility import NO_TEST, PAGE, PARTS, Compatibility, has_row_of, page, rows


def test_the_page_is_made_from_the_stored_rows() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.compatibility`"
    assert not NO_TEST.keys() & {row.project for row in rows().values()}


@pytest.mark.parametrize("node", sorted(rows()))
def test_each_row_comes_from_a_test_that_is_there(node: str) -> None:
    assert has_row_of(node), f"remove the row from tests/compatibility.json: {node} makes none"


def test_a_row_needs_its_test_and_a_word_about_each_part(compatibility: Compatibility) -> None:
    assert not has_row_of("tests/docs/test_compatibility.py::test_each_row_comes_from_a_test_that_is_there")
    assert not has_row_of("tests/docs/gone.py::test_x")
    known = {"start": "x", "page": "api.md", "ran": "x"}
    with pytest.raises(AssertionError, match="tokens"):
        compatibility.same("tokens", [1], [2])
    compatibility.same("tokens", [], [])
    with pytest.raises(AssertionError, match="compared: set"):
        compatibility.row("x", "1", **known)
    with pytest.raises(AssertionError, match="ROLLYARD_WRITE_COMPATIBILITY=1"):
        compatibility.row("x", "1", **known, missing=dict.fromkeys(PARTS, "x"))
