"""The task kind `stem`: what the agent is asked, what counts as its answer, and what a score says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.stem.handler import StemHandler
from rollyard.trajectory import Turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHOICE = {"form": "choice", "options": ["mitosis", "meiosis"], "answer": "B"}
SEVERAL = {"form": "choice", "options": ["1 m", "1 s", "100 cm", "2 m"], "answer": "A, C", "several": True}
NUMBER = {"form": "number", "answer": "9.81", "unit": "m/s^2", "significant_figures": 3}
EXPRESSION = {"form": "expression", "answer": r"\frac{1}{2}mv^2"}
OPEN = {"form": "open", "answer": "tidal locking"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def handler() -> AsyncIterator[StemHandler]:
    made = StemHandler()
    yield made
    await made.close()


def task(fields: dict[str, Any]) -> Task:
    return Task.model_validate({"kind": "stem", "question": "What?", **fields})


async def score(handler: StemHandler, fields: dict[str, Any], *texts: str) -> Score:
    turns = [Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop") for text in texts]
    return await handler.evaluate(task(fields), Evaluation({}, turns, 60.0))


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        (CHOICE, "What?\n\nA. mitosis\nB. meiosis\n\nAnswer with the letter of the right option in \\boxed{}."),
        (SEVERAL, "Answer with all their letters in \\boxed{}, such as \\boxed{A, C}."),
        (NUMBER, "What?\n\nAnswer with one number in m/s^2, to 3 significant figures, in \\boxed{}."),
        ({"form": "number", "answer": "7"}, "What?\n\nAnswer with one number, in \\boxed{}."),
        (EXPRESSION, "Answer with the final expression in \\boxed{}."),
        (OPEN, "has the answer alone, without its derivation."),
    ],
)
async def test_the_question_says_the_form_of_the_answer(handler: StemHandler, fields: dict[str, Any], end: str) -> None:
    (said,) = handler.prompt(task(fields))
    assert said["content"].endswith(end)
    assert handler.prompt(task({**fields, "system": "Think."}))[0] == {"role": "system", "content": "Think."}
    assert handler.tools(task({**fields, "tools": ["ipython"]})) == ["ipython"]


@pytest.mark.parametrize("fields", [CHOICE, SEVERAL, NUMBER, EXPRESSION, OPEN])
async def test_the_reference_is_right_and_nothing_is_wrong(handler: StemHandler, fields: dict[str, Any]) -> None:
    assert (await score(handler, fields, await handler.solve(task(fields), cast(Any, None)))).reward == 1.0
    for nothing in ([], [""], ["I do not know."], ["\\boxed{}"], ["Answer:"], ["\\boxed{:}"], ["\\boxed{1}", "Hm."]):
        found = await score(handler, fields, *nothing)
        assert (found.reward, len(found.notes)) == (0.0, 1), nothing


async def test_a_score_says_why(handler: StemHandler) -> None:
    for fields, text, reward, note, metrics in [
        (CHOICE, "\\boxed{A}", 0.0, "the answer chooses A, and B is right", {}),
        (CHOICE, "\\boxed{life}", 0.0, "the answer life is no choice from A to B", {"no_choice": 1.0}),
        (NUMBER, "It is 9.", 0.0, "no answer found: the last turn has neither a whole \\boxed{...} nor `Answer: ...`", None),
        (NUMBER, "\\boxed{981 cm/s^2}", 1.0, "the answer 981 cm/s^2 is right", {"relative_error": 0.0}),
        (NUMBER, "Answer: 9 m/s", 0.0, "the answer 9 m/s is in m/s, which is not converted to m/s^2", {"wrong_unit": 1.0}),
        (NUMBER, "\\boxed{9.81 or 10}", 0.0, "the answer 9.81 or 10 is not one number with a unit", {}),
        (NUMBER, "\\boxed{9.9}", 0.0, "the answer 9.9 is not 9.81 m/s^2 (accepted difference: 3 significant figures)", ...),
        (EXPRESSION, "\\boxed{\\frac{mv^2}{2}}", 1.0, "the answer \\frac{mv^2}{2} is right", {}),
        (EXPRESSION, "\\boxed{mv^2}", 0.0, "the answer mv^2 is not equal to \\frac{1}{2}mv^2", {}),
    ]:  # fmt: skip
        found = await score(handler, fields, text)
        assert (found.reward, list(found.notes)) == (reward, [note])
        if metrics is not ...:
            assert found.metrics == ({"answered": 0.0} if metrics is None else {"answered": 1.0, **metrics})


async def test_of_several_options_the_parts_say_which_were_chosen(handler: StemHandler) -> None:
    for letters, reward, parts in [
        ("A, C", 1.0, {"right_chosen": 1.0, "wrong_chosen": 0.0}), ("A", 0.0, {"right_chosen": 0.5, "wrong_chosen": 0.0}),
        ("ABCD", 0.0, {"right_chosen": 1.0, "wrong_chosen": 1.0}), ("B", 0.0, {"right_chosen": 0.0, "wrong_chosen": 0.5}),
    ]:  # fmt: skip
        found = await score(handler, SEVERAL, f"\\boxed{{{letters}}}")
        assert (found.reward, found.parts) == (reward, parts)


async def test_long_and_hostile_answers_earn_nothing(handler: StemHandler) -> None:
    assert (await score(handler, NUMBER, f"\\boxed{{{'9' * 2001}}}")).metrics == {"answered": 1.0, "too_long": 1.0}
    for text in (
        "1e999999999",
        "9" * 1990,
        "(" * 1990,
        "^{" * 900,
        "1," * 900,
        "1 ± " * 450,
        "\ud800",
        "1=" * 900,
        "\\text{" * 300,
    ):
        for fields in (CHOICE, NUMBER):
            assert (await score(handler, fields, f"Answer: {text}")).reward == 0.0, text
