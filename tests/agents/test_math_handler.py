"""The `math` task: equal answers in any form count, and what a model writes can neither hang nor break the judge."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.agents.answers import MAX_ANSWER_CHARS
from rollyard.agents.tasks.math import MathHandler, last_boxed
from rollyard.errors import TaskError
from rollyard.kinds.rollout import Task, Turn


def task(answer: str) -> Task:
    return Task.model_validate({"kind": "math", "problem": "?", "answer": answer})


def turn(text: str) -> Turn:
    return Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")


async def reward(handler: MathHandler, reference: str, answer: str) -> float:
    return (await handler.evaluate(task(reference), {}, None, [turn(f"So \\boxed{{{answer}}}.")], 60.0)).reward


async def test_the_judge() -> None:
    """One handler, as in a node agent, so that each question meets what the ones before it left behind."""
    handler = MathHandler()
    try:
        for reference, answer in [
            ("1/2", "0.5"), ("\\frac{1}{2}", "\\frac12"), ("\\frac{1}{2}", "0.5"), ("42", "42.0"), ("2\\sqrt{2}", "\\sqrt{8}"),
            ("(1, 2)", "(1,2)"), ("x^2+2x+1", "(x+1)^2"),
        ]:  # fmt: skip
            assert await reward(handler, reference, answer) == 1.0, (reference, answer)
        for answer in ("0.51", "", "\\text{half}", "}{", "\\frac{1}{", "None", "9" * (MAX_ANSWER_CHARS + 1)):
            assert await reward(handler, "1/2", answer) == 0.0, answer
        async with asyncio.timeout(60):
            for hostile in ("9**9**9", "9^{9^{9^{9}}}", "10^{10^{10}}!"):
                assert await reward(handler, "42", hostile) == 0.0, hostile
        assert await reward(handler, "42", "42") == 1.0, "the judge goes on"
        with pytest.raises(TaskError, match="cannot be read as mathematics"):
            await reward(handler, "}{", "42")
    finally:
        await end(handler)


async def end(handler: MathHandler) -> None:
    process = handler._checker._process
    if process is not None:
        process.kill()
        await process.wait()


async def test_without_an_answer_nothing_is_asked() -> None:
    handler = MathHandler()
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
        ("\\boxed{}", ""),
        ("\\boxed", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text: str, found: str | None) -> None:
    assert last_boxed(text) == found
