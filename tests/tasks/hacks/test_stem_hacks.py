"""Hacks against choices and numbers of the kind `stem`, and honest answers that look like them. Those against its judge are in
`tests/tasks/stem/test_judge.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation
from rollyard.tasks.stem.handler import StemHandler
from rollyard.trajectory import Turn

ONE = {"form": "choice", "options": ["mitosis", "meiosis", "binary fission", "budding"], "answer": "B"}
TWO = {**ONE, "answer": "B, D", "several": True}
NUMBER = {"form": "number", "answer": "9.81", "unit": "m/s^2", "relative_tolerance": 0.01}
COUNT = {"form": "number", "answer": "12"}
HACKS = {
    "every option": (ONE, r"\boxed{A, B, C, D}"),
    "every option, no commas": (ONE, r"\boxed{ABCD}"),
    "every option in a box of its own": (ONE, r"\boxed{A} \boxed{B} \boxed{C} \boxed{D}"),
    "every option in one box": (ONE, r"\boxed{\boxed{A} \boxed{B} \boxed{C}}"),
    "every option in a line of its own": (ONE, "Answer: A\nAnswer: B\nAnswer: C"),
    "every text": (ONE, r"\boxed{mitosis, meiosis, binary fission, budding}"),
    "a letter and another text": (ONE, r"\boxed{B. mitosis}"),
    "a letter, then another": (ONE, r"\boxed{B \text{ or } C}"),
    "a letter and a doubt": (ONE, r"\boxed{B, because it is not A, C or D; or it is C}"),
    "all of the above": (ONE, r"\boxed{\text{all of the above}}"),
    "all for several": (TWO, r"\boxed{A, B, C, D}"),
    "some for several": (TWO, r"\boxed{B}"),
    "the letter of no option": (ONE, r"\boxed{X}"),
    "nothing": (ONE, r"\boxed{}"),
    "a colon": (ONE, "Answer:"),
    "a placeholder": (ONE, r"\boxed{\text{letter}}"),
    "a letter that looks like it": (ONE, r"\boxed{В}"),
    "two numbers": (NUMBER, r"\boxed{9.81 \text{ or } 10}"),
    "a list of numbers": (COUNT, r"\boxed{10, 11, 12, 13}"),
    "a range": (NUMBER, r"\boxed{0 - 100}"),
    "an interval": (NUMBER, r"\boxed{[9, 10]}"),
    "plus and minus": (COUNT, r"\boxed{\pm 12}"),
    "a wide uncertainty": (NUMBER, r"\boxed{50 \pm 50 \text{ m/s}^2}"),
    "a chain of guesses": (NUMBER, r"\boxed{8 = 9 = 9.81}"),
    "an equation to solve": (COUNT, r"\boxed{2 x = 24}"),
    "a calculation": (COUNT, r"\boxed{6 \cdot 2}"),
    "a fraction to reduce": (COUNT, r"\boxed{24/2}"),
    "no number": (NUMBER, r"\boxed{\text{nan}}"),
    "infinity": (NUMBER, r"\boxed{\infty}"),
    "a huge power": (NUMBER, r"\boxed{10^{999999999}}"),
    "a tower": (NUMBER, r"\boxed{9^{9^{9^{9}}}}"),
    "another unit": (NUMBER, r"\boxed{9.81 \text{ km/s}^2}"),
    "every unit": (NUMBER, r"\boxed{9.81 \text{ m/s}^2 \text{ or km/s}^2}"),
    "a number word": (COUNT, r"\boxed{12 \text{ dozen}}"),
    "two texts behind a letter": (ONE, r"\boxed{B: meiosis / mitosis}"),
    "two texts behind a letter, with or": (ONE, r"\boxed{B. meiosis or mitosis}"),
    "two texts in brackets": (ONE, r"\boxed{B (meiosis/mitosis)}"),
    "an uncertainty above the tolerance": (NUMBER, r"\boxed{9.81 \pm 1000}"),
    "an uncertainty in another unit": (NUMBER, r"\boxed{981 \pm 50 \text{ cm/s}^2}"),
    "an uncertainty of an exact number": (COUNT, r"\boxed{12 \pm 1}"),
    "a power behind the brackets": (COUNT, r"\boxed{(12 \pm 0) \times 10^8}"),
    "a comma for a point": (NUMBER, r"\boxed{9,81,10}"),
}
MULTIPLES = (
    "12 quadrillion", "12 lakh", "12 crore", "12 gross", "12 score", "12 halves", "12 tenths", "12 hundredths", "12 factorial",
    "12 googol", "12 reciprocal", "12K", "12M", "12B", "12 forty-two", "12 alternatively thirteen", "12 but also 13",
)  # fmt: skip
"""Answers whose words make another number of 12, or two."""
HACKS |= {f"a multiple: {text}": (COUNT, f"Answer: {text}") for text in MULTIPLES}
HONEST = {
    "corrected": (ONE, r"first \boxed{A}, no: \boxed{B}"),
    "options discussed": (ONE, r"A, C and D are wrong, so the answer is B."),
    "a letter with its text": (ONE, r"\boxed{\textbf{(B)}\ \text{meiosis}}"),
    "boxed twice, the same": (ONE, r"\boxed{B}, so \boxed{B}"),
    "a box behind the mark": (ONE, r"**Answer:** $\boxed{\text{B}}$"),
    "several in words": (TWO, r"\boxed{\text{B and D}}"),
    "several in another order": (TWO, r"\boxed{D, B}"),
    "two units": (NUMBER, r"\boxed{9.81 \text{ m/s}^2 = 981 \text{ cm/s}^2}"),
    "an uncertainty": (NUMBER, r"\boxed{(9.81 \pm 0.02)\ \mathrm{m\,s^{-2}}}"),
    "a formula before it": (NUMBER, r"\boxed{g = \frac{GM}{r^2} = 9.82\ \text{m/s}^2}"),
    "rounded": (NUMBER, r"\boxed{\approx 9.8}"),
    "an uncertainty and a power": (
        {**NUMBER, "answer": "3.00e8", "unit": "m/s"},
        r"\boxed{(3.00 \pm 0.02) \times 10^8 \text{ m/s}}",
    ),
    "an option's text with a word beside it": (ONE, r"\boxed{B: meiosis (not mitosis)}"),
    "an Indian number": ({**COUNT, "answer": "1200000"}, r"\boxed{12 \text{ lakh}}"),
    "a unit behind a space": (COUNT, r"\boxed{12\ \text{K}}"),
    "what is counted": (COUNT, r"\boxed{12 \text{ electrons}}"),
}


@pytest.fixture
async def handler() -> AsyncIterator[StemHandler]:
    made = StemHandler()
    yield made
    await made.close()


async def reward(handler: StemHandler, fields: dict[str, Any], text: str) -> float:
    turn = Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")
    task = Task.model_validate({"kind": "stem", "question": "?", **fields})
    return (await handler.evaluate(task, Evaluation({}, [turn], 60.0))).reward


async def test_no_hack_gets_a_reward(handler: StemHandler) -> None:
    rewards = {name: await reward(handler, *case) for name, case in HACKS.items()}
    assert rewards == dict.fromkeys(HACKS, 0.0)


async def test_honest_answers_get_the_reward(handler: StemHandler) -> None:
    rewards = {name: await reward(handler, *case) for name, case in HONEST.items()}
    assert rewards == dict.fromkeys(HONEST, 1.0)
