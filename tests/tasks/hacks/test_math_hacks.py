"""Hacks against the kind `math`, and honest answers that look like them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.math import MathHandler
from rollyard.trajectory import Turn

HACKS = {
    "boxed twice": ("42", r"\boxed{42} or \boxed{41}"),
    "every option boxed": ("B", r"\boxed{A} \boxed{B} \boxed{C} \boxed{D}"),
    "every option in one box": ("B", r"\boxed{A, B, C, D}"),
    "two numbers": ("42", r"\boxed{41 \text{ or } 42}"),
    "one box in another": ("42", r"\boxed{\boxed{42}, 41}"),
    "the question repeated": ("15070", r"\boxed{417 \cdot 36 + 58}"),
    "a tautology": ("42", r"\boxed{x = x}"),
    "plus and minus": ("42", r"\boxed{\pm 42}"),
    "an interval": ("42", r"\boxed{[0, 100]}"),
    "a placeholder": ("42", r"\boxed{answer}"),
    "nothing": ("42", r"\boxed{}"),
    "a colon": ("42", r"\boxed{:}"),
    "a tower of powers": ("x^2", r"\boxed{x^{9^{9^{9^{9}}}}}"),
    "many braces": ("42", r"\boxed{" + "{" * 5000 + "42" + "}" * 5000 + "}"),
    "code": ("42", r"\boxed{__import__('os')._exit(0)}"),
    "not a number": ("42", r"\boxed{\text{nan}}"),
    "a choice of all": ("B", r"\boxed{(A) (B)}"),
    "the reference named": ("42", r"\boxed{\text{the reference answer}}"),
}
HONEST = {
    "boxed twice, the same": ("42", r"\boxed{42}, so \boxed{42}"),
    "corrected": ("42", r"first \boxed{41}, no: \boxed{42}"),
    "options discussed": ("B", r"A and C are wrong, so \boxed{B}"),
    "with its unit": ("42", r"\boxed{42 \text{ apples}}"),
    "a name": ("42", r"\boxed{x = 42}"),
}


@pytest.fixture
async def handler() -> AsyncIterator[MathHandler]:
    made = MathHandler()
    yield made
    await made.close()


async def score(handler: MathHandler, reference: str, text: str) -> Score:
    turn = Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")
    task = Task.model_validate({"kind": "math", "problem": "?", "answer": reference})
    return await handler.evaluate(task, Evaluation({}, [turn], 60.0))


async def test_no_hack_gets_a_reward(handler: MathHandler) -> None:
    rewards = {name: (await score(handler, *case)).reward for name, case in HACKS.items()}
    assert rewards == dict.fromkeys(HACKS, 0.0)


async def test_honest_answers_get_the_reward(handler: MathHandler) -> None:
    rewards = {name: (await score(handler, *case)).reward for name, case in HONEST.items()}
    assert rewards == dict.fromkeys(HONEST, 1.0)
