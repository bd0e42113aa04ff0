"""Rows as rollout requests: where the task stands, and what a row may not name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.row_request import request_of_row

TASK = {"kind": "math", "problem": "What is 1 + 1?", "answer": "2"}


def made(row: dict[str, Any], task: object = None) -> RolloutRequest:
    defaults = {"pool": "demo", "sampling": {"temperature": 0.7, "top_p": 0.9}}
    where = {"noun": "row", "remedy": "write it in `rollyard`"}
    return request_of_row(row, task, **where, set_by_bridge={"id": "a-0"}, defaults=defaults)


@pytest.mark.parametrize("row", [{"rollyard": {"task": TASK}}, {"rollyard": json.dumps({"task": TASK})}])
def test_the_field_counts_before_another_place_of_the_task(row: dict[str, Any]) -> None:
    request = made(row, {**TASK, "kind": "other"})
    assert (request.id, request.pool, request.task.model_dump()) == ("a-0", "demo", TASK)
    assert made({"rollyard": None}, TASK) == request


def test_a_row_changes_single_sampling_parameters() -> None:
    request = made({"rollyard": {"task": TASK, "pool": "other", "sampling": {"top_p": 0.5}}})
    assert (request.pool, request.sampling.temperature, request.sampling.top_p) == ("other", 0.7, 0.5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "the row names no task; write it in `rollyard`"),
        ({"rollyard": "{"}, "the row's field `rollyard` is not JSON: "),
        ({"rollyard": "[]"}, "the row names no task"),
        ({"rollyard": {"task": TASK, "n": 2}}, "`rollyard.n` is set by the bridge; leave it out"),
        ({"rollyard": {"tasks": TASK}}, "the row cannot be run: rollyard.tas"),
    ],
)
def test_other_rows_are_refused_with_a_way_out(row: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(row, {"name": "no kind"})
    assert words in str(refused.value)
