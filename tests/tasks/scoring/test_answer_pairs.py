"""A table of answers that a person has judged, beside the checker of `math` and the library math-verify.

`answer_pairs.tsv` has a line for each pair: the judgement, the reference, the answer, and where the judgement may be
doubted its ground.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from rollyard.tasks.scoring.math_answers import judge_answer, load_algebra

TABLE = Path(__file__).with_name("answer_pairs.tsv")
PAGE = Path(__file__).parents[3] / "docs" / "math.md"
REFUSED = {("1000000", "10^6"), ("1.5", "1,5"), ("(0,1)", r"0<x \text{ and } x<1")}
"""Right answers that the checker refuses."""
REWARDED: set[tuple[str, str]] = set()
"""Wrong answers that the checker rewards."""


class Pair(NamedTuple):
    judgement: str
    reference: str
    answer: str
    ground: str

    @property
    def key(self) -> tuple[str, str]:
        return self.reference, self.answer


def pairs() -> list[Pair]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Pair(*row) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]


@pytest.fixture(scope="module", autouse=True)
def algebra() -> None:
    load_algebra()


def ours(reference: str, answer: str) -> bool:
    return judge_answer(reference.encode(), answer.encode()).get("right") == 1.0


def theirs(reference: str, answer: str) -> bool:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, StringExtractionConfig, parse, verify

    extraction = [LatexExtractionConfig(), ExprExtractionConfig(), StringExtractionConfig(strings=tuple("ABCDEFGHIJ"))]
    boxed = [parse(rf"\boxed{{{text}}}", extraction_config=extraction) for text in (reference, answer)]
    return bool(verify(*boxed))


@pytest.mark.long
def test_at_most_three_of_the_judged_answers_are_misjudged_in_each_direction() -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    table = pairs()
    assert len({pair.key for pair in table}) == len(table) >= 300
    right = [pair.key for pair in table if pair.judgement == "right"]
    wrong = [pair.key for pair in table if pair.judgement == "wrong"]
    assert len(right) + len(wrong) == len(table)
    assert {key for key in right if not ours(*key)} == REFUSED
    assert {key for key in wrong if ours(*key)} == REWARDED
    refused, rewarded = sum(not theirs(*key) for key in right), sum(theirs(*key) for key in wrong)
    page = PAGE.read_text()
    assert f"| this page's rule | {len(REFUSED)} of {len(right)} | {len(REWARDED)} of {len(wrong)} |" in page
    assert f"| math-verify 0.9.0 | {refused} of {len(right)} | {rewarded} of {len(wrong)} |" in page
