"""The `math` task: what a model writes can neither hang the judge, nor break it, nor hold up other answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.core.errors import TaskError
from rollyard.kinds.rollout import Task, Turn
from rollyard.node.agents.scoring.checker_pool import CheckerPool
from rollyard.node.agents.tasks.base import Score
from rollyard.node.agents.tasks.math import MAX_ANSWER_CHARS, MathHandler, last_boxed

HANGS = r"x^{9^{9^{9^{9}}}}"
"""Against a reference with variables, where any form is worked out."""

FILLING_JUDGE = """
from rollyard.node.agents.scoring.checker_process import serve
def check(*texts):
    return {"right": float(len(bytearray(1 << 40 if b"big" in texts else 0)))}
serve(check, 10, 1 << 30)
"""


@pytest.fixture
async def handler() -> AsyncIterator[MathHandler]:
    made = MathHandler()
    yield made
    await made.close()


def task(answer: str) -> Task:
    return Task.model_validate({"kind": "math", "problem": "?", "answer": answer})


def turn(text: str) -> Turn:
    return Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")


async def score(handler: MathHandler, reference: str, answer: str) -> Score:
    return await handler.evaluate(task(reference), {}, None, [turn(f"So \\boxed{{{answer}}}.")], 60.0)


async def test_an_answer_is_judged_whatever_the_one_before_it_left_behind(handler: MathHandler) -> None:
    for reference, answer, reward in [
        ("1/2", "0.5", 1.0), ("x^2+2x+1", "(x+1)^2", 1.0), ("1/2", "0.51", 0.0), ("x^2", "}{", 0.0),
        ("15070", "417 * 36 + 58", 0.0), ("2\\sqrt{2}", "\\sqrt{8}", 1.0), ("42", "\ud800", 0.0),
    ]:  # fmt: skip
        assert await score(handler, reference, answer) == Score(reward, {"answered": 1.0}), (reference, answer)
    too_long = await score(handler, "42", "9" * (MAX_ANSWER_CHARS + 1))
    assert too_long == Score(0.0, {"answered": 1.0, "too_long": 1.0})
    with pytest.raises(TaskError, match="cannot be read as mathematics"):
        await score(handler, "}{", "42")


async def test_answers_that_hang_earn_nothing_quickly_and_right_ones_do_not_wait_for_them(handler: MathHandler) -> None:
    hanging = [asyncio.create_task(score(handler, "x^2", HANGS))]
    right = [asyncio.create_task(score(handler, "x^2+2x+1", "(x+1)^2")) for _ in range(4)]
    hanging += [asyncio.create_task(score(handler, "x^2", HANGS))]
    assert {found.reward for found in await asyncio.gather(*right)} == {1.0}
    assert not hanging[-1].done(), "they were no hindrance"
    for found in await asyncio.gather(*hanging):
        assert found.reward == 0.0
        assert found.metrics.keys() - {"timed_out", "too_large"} == {"answered"}, "the metrics say why"
        assert len(found.metrics) == 2


@pytest.mark.parametrize(
    ("form", "answer"),
    [("1, {}", "1, x"), *(pytest.param(*one, marks=pytest.mark.long) for one in (("{}", "x"), ("(1, {})", "(1, x)")))],
)
async def test_a_reference_that_cannot_be_computed_is_the_tasks_fault(
    handler: MathHandler, form: str, answer: str
) -> None:
    with pytest.raises(TaskError, match="cannot be computed"):
        await score(handler, form.format(HANGS), answer)


async def test_a_reference_that_needs_too_much_memory_is_the_tasks_fault(
    handler: MathHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filling_judge.py").write_text(FILLING_JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(handler, "_checkers", CheckerPool("filling_judge", [b"1", b"1"]))
    assert await score(handler, "1", "big") == Score(0.0, {"answered": 1.0, "too_large": 1.0})
    with pytest.raises(TaskError, match="cannot be computed"):
        await score(handler, "big", "1")


async def test_without_an_answer_nothing_is_asked(handler: MathHandler) -> None:
    for turns in ([], [turn("It is 42.")], [turn("\\boxed{42}"), turn("I am not sure.")]):
        found = await handler.evaluate(task("42"), {}, None, turns, 60.0)
        assert (found.reward, found.metrics) == (0.0, {"answered": 0.0})


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
