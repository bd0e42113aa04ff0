"""Fields of the task kind `stem`: a wrong task is refused with what one can do."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.stem_task import StemTask
from rollyard.kinds.task import Task

CHOICE = {"form": "choice", "options": ["one", "two", "three"], "answer": "B"}
NUMBER = {"form": "number", "answer": "9.81", "unit": "m/s^2"}


def checked(fields: dict[str, Any]) -> StemTask:
    found = check_task(Task.model_validate({"kind": "stem", "question": "?", **fields}))
    assert isinstance(found, StemTask)
    return found


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"form": "words", "answer": "x"}, "task.form: Input should be 'choice', 'number', 'expression' or 'open'"),
        ({**CHOICE, "answer": "D"}, "names options by their letters, A to C"),
        ({**CHOICE, "answer": "two"}, "names options by their letters, A to C"),
        ({**CHOICE, "answer": "A, B"}, "set `several: true`"),
        ({**CHOICE, "options": ["one"]}, "at least two `options`"),
        ({**CHOICE, "options": ["one", " one"]}, "the same text"),
        ({**CHOICE, "unit": "m"}, "`unit` is for `form: number`; leave it out"),
        ({**NUMBER, "options": ["9.81", "1"]}, "`options` is for `form: choice`; leave it out"),
        ({**NUMBER, "answer": "9.81 m/s^2"}, "with its unit in `unit`"),
        ({**NUMBER, "answer": "1e99999"}, "must be a number such as"),
        ({**NUMBER, "answer": "1/0"}, "must be a number such as"),
        ({**NUMBER, "unit": "furlongs per fortnight"}, "a unit of known symbols or names"),
        ({**NUMBER, "answer": "0", "significant_figures": 2}, "set `absolute_tolerance`"),
        ({**NUMBER, "relative_tolerance": 5}, "task.relative_tolerance: Input should be less than 1"),
        ({"form": "open", "answer": "x", "judgements": 2}, "Input should be 1, 3, 5, 7 or 9"),
        ({**NUMBER, "tolerance": 0.1}, "task.tolerance: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_task_is_refused_with_what_one_can_do(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked(fields)
    assert why in str(refused.value)


def test_right_tasks_of_each_form() -> None:
    assert checked(CHOICE).letters == "B"
    assert checked({**CHOICE, "several": True, "answer": "C, A"}).letters == "AC"
    assert checked({**NUMBER, "answer": "1/3", "relative_tolerance": 0.01}).value * 3 == 1
    assert not StemTask.offers_tools({})
    assert StemTask.offers_tools({"tools": ["ipython"]})
    checked({"form": "expression", "answer": r"\frac{1}{2}mv^2"})
    checked({"form": "open", "answer": "tidal locking", "rubric": "It names the Moon.", "judgements": 3})
