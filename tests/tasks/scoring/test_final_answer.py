"""Which part of a turn counts as its answer."""

from __future__ import annotations

import time

import pytest

from rollyard.tasks.scoring.final_answer import final_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}} done", "\\frac{1}{2}"),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("} \\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{1 { }", None),
        ("\\boxed{}", ""),
        ("\\boxed", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


def test_a_text_full_of_open_boxes_does_not_stop_the_node_agent() -> None:
    """It took minutes when each box was followed to the end of the text."""
    began = time.process_time()
    assert last_boxed("\\boxed{" * 100_000) is None
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("text", "line", "whole"),
    [
        ("So \\boxed{B}.", "B", "B"),
        ("Answer: B", "B", "B"),
        ("**Answer:** (B)\n\nIt is meiosis.", "(B)", "(B)\n\nIt is meiosis."),
        ("### Final Answer:\nmeiosis\nin oocytes", "meiosis", "meiosis\nin oocytes"),
        ("Energy is kept, so the correct answer is: B", "B", "B"),
        ("My answer is 5 m.", "5 m.", "5 m."),
        ("Answer: A\nNo. Answer: B\nAnswer: C", "C", "C"),
        ("\\boxed{A}\nAnswer: B", "B", "B"),
        ("Answer: A\nThat is \\boxed{B}", "B", "B"),
        ("Answer: \\boxed{\\text{B}}", "\\text{B}", "\\text{B}"),
        ("Answer:", "", ""),
        ("I answer: B", None, None),
        ("It is B.", None, None),
        ("", None, None),
    ],
)
def test_the_last_box_or_marked_answer_counts(text: str, line: str | None, whole: str | None) -> None:
    assert (final_answer(text), final_answer(text, lines=True)) == (line, whole)


def test_a_text_full_of_marks_does_not_stop_the_node_agent() -> None:
    for text in (
        "Answer:" * 50_000,
        "the " * 100_000,
        "answer " + " " * 200_000,
        "> # * " * 50_000,
        "the answer is " * 50_000,
    ):
        final_answer(text)
