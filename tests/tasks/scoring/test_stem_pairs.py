"""A table of choices and quantities that a person has judged, beside the checker of `stem`.

`stem_pairs.tsv` has a line for each pair: the judgement, the reference, its unit or its options, the accepted difference, the
answer, and where the judgement may be doubted its ground.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

from rollyard.kinds.stem_task import StemTask
from rollyard.tasks.scoring.stem_answers import judge_answer

TABLE = Path(__file__).with_name("stem_pairs.tsv")
PAGE = Path(__file__).parents[3] / "docs" / "stem.md"


class StemPair(NamedTuple):
    judgement: str
    reference: str
    of: str
    accepted: str
    answer: str
    ground: str


def pairs() -> list[StemPair]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [StemPair(*row) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]


def task_of(pair: StemPair) -> StemTask:
    fields: dict[str, Any] = {"question": "?", "answer": pair.reference}
    if " | " in pair.of:
        fields |= {"form": "choice", "options": pair.of.split(" | "), "several": "," in pair.reference}
        return StemTask.model_validate(fields)
    fields |= {"form": "number", **({"unit": pair.of} if pair.of.strip() else {})}
    amount, _, kind = pair.accepted.partition(" ")
    if kind == "figures":
        fields["significant_figures"] = int(amount)
    elif amount.endswith("%"):
        fields["relative_tolerance"] = float(amount[:-1]) / 100
    elif amount != "exact":
        fields["absolute_tolerance"] = float(amount.removeprefix("±"))
    return StemTask.model_validate(fields)


REFUSED = {("0.050", "0.05 mol of NaOH per liter"), ("7", "seven (7)")}
"""Right answers that the checker refuses."""
REWARDED: set[tuple[str, str]] = set()
"""Wrong answers that the checker rewards."""


def test_at_most_two_of_the_judged_answers_are_misjudged_in_each_direction() -> None:
    table = pairs()
    right = [pair for pair in table if pair.judgement == "right"]
    wrong = [pair for pair in table if pair.judgement == "wrong"]
    assert len({pair[1:5] for pair in table}) == len(table) == len(right) + len(wrong) >= 120
    assert {(pair.reference, pair.answer) for pair in right if not rewarded(pair)} == REFUSED
    assert {(pair.reference, pair.answer) for pair in wrong if rewarded(pair)} == REWARDED
    assert (
        f"refuses {len(REFUSED)} of {len(right)} right answers and rewards {len(REWARDED)} of {len(wrong)}"
        in PAGE.read_text()
    )


def rewarded(pair: StemPair) -> bool:
    verdict = judge_answer(task_of(pair).model_dump_json(exclude_unset=True).encode(), pair.answer.encode())
    assert len(verdict["notes"]) == 1
    return bool(verdict["right"] == 1.0)
