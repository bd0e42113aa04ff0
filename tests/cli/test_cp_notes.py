"""Sentences of `rollyard cp` about files that it leaves out."""

from __future__ import annotations

from rollyard.cli.cp import _Progress


def test_the_first_five_files_are_named_and_the_others_counted() -> None:
    progress = _Progress("a to b", shown=False)
    for number in range(7):
        progress.note(f"left out {number}")
    progress.end_notes()
    assert progress.complaints.splitlines() == [*(f"left out {number}" for number in range(5)), "and 2 more like these"]
    few = _Progress("a to b", shown=False)
    few.note("left out \x1b[31m")
    few.end_notes()
    assert "more like these" not in few.complaints
    assert "\x1b" not in few.complaints
