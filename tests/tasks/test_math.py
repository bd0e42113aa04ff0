"""The `math` task: what a model writes can neither hang the judge, nor break it, nor hold up other answers."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from rollyard.core.errors import TaskError
from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.math import MathHandler
from rollyard.tasks.scoring.checker_pool import CheckerPool
from rollyard.tasks.scoring.final_answer import MAX_ANSWER_CHARS, last_boxed
from rollyard.trajectory import Turn

HANGS = r"x^{9^{9^{9^{9}}}}"
"""Against a reference with variables, where any form is worked out."""

FILLING_JUDGE = """
from rollyard.tasks.scoring.checker_process import serve
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
    return await handler.evaluate(task(reference), Evaluation({}, [turn(f"So \\boxed{{{answer}}}.")], 60.0))


async def test_an_answer_is_judged_whatever_the_one_before_it_left_behind(handler: MathHandler) -> None:
    for reference, answer, reward in [
        ("1/2", "0.5", 1.0), ("x^2+2x+1", "(x+1)^2", 1.0), ("1/2", "0.51", 0.0), ("x^2", "}{", 0.0),
        ("15070", "417 * 36 + 58", 0.0), ("2\\sqrt{2}", "\\sqrt{8}", 1.0), ("42", "\ud800", 0.0),
    ]:  # fmt: skip
        found = await score(handler, reference, answer)
        assert (found.reward, found.metrics, len(found.notes)) == (reward, {"answered": 1.0}, 1), (reference, answer)
    assert last_boxed(await handler.solve(task("\\frac{1}{2}"), cast(Any, None))) == "\\frac{1}{2}"
    too_long = await score(handler, "42", "9" * (MAX_ANSWER_CHARS + 1))
    why = "the answer has 2001 characters; the limit is 2000"
    assert too_long == Score(0.0, {"answered": 1.0, "too_long": 1.0}, [why])
    with pytest.raises(TaskError, match="cannot be read as mathematics"):
        await score(handler, "}{", "42")


def test_a_number_is_judged_without_the_import_of_an_algebra_system() -> None:
    judge = "import sys; from rollyard.tasks.scoring.math_answers import is_right as right"
    program = f"{judge}; print(right('3/4', '0.75'), right('42', 'x'), 'sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True False False\n"


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
    found = await score(handler, "1", "big")
    assert (found.reward, found.metrics) == (0.0, {"answered": 1.0, "too_large": 1.0})
    assert found.notes == ["the answer cannot be compared with the reference within the limits of CPU time and memory"]
    with pytest.raises(TaskError, match="cannot be computed"):
        await score(handler, "big", "1")


async def test_without_an_answer_nothing_is_asked(handler: MathHandler) -> None:
    for turns in ([], [turn("It is 42.")], [turn("\\boxed{42}"), turn("I am not sure.")]):
        found = await handler.evaluate(task("42"), Evaluation({}, turns, 60.0))
        assert (found.reward, found.metrics) == (0.0, {"answered": 0.0})
        assert found.notes == ["no answer found: the last turn has no whole \\boxed{...}"]


BOMBS = [
    r"9^{9^{9^{9}}}", "10000!!!", r"\frac{1}{1+" * 6_000 + "1" + "}" * 6_000, r"\sum_{n=1}^{10^{12}} \sin n", r"x^{9^{9^{9}}}",
    r"\int_0^1 x^{9^{9}} e^{e^{e^{x}}} dx", "9" * 1_900 + "!",
]  # fmt: skip
RIGHT = [("7", "7"), ("x^2+2x+1", "(x+1)^2"), (r"2\sqrt{2}", r"\sqrt{8}"), ("1/2", "0.5"), ("(1,2)", "(1, 2)")]


def idle_children(handler: MathHandler) -> list[int]:
    idle = handler._checkers._idle
    children = [idle.get_nowait() for _ in range(idle.qsize())]
    for child in children:
        idle.put_nowait(child)
    return [child.pid for child in children]


def test_right_answers_among_bombs_are_right_off_the_main_thread_and_leave_nothing() -> None:
    """A judge with alarms fails off the main thread, and one without limits is lost to the first bomb."""

    async def judge() -> list[Score]:
        handler = MathHandler()
        try:
            assert (await score(handler, "7", "7")).reward == 1.0
            base = resident_bytes(*idle_children(handler))
            bombs = [score(handler, reference, bomb) for bomb in BOMBS for reference in ("7", "x^2")]
            right = [score(handler, *pair) for pair in RIGHT * 10]
            (*blown,) = await asyncio.gather(*bombs, *right)
            assert {found.reward for found in blown[: len(bombs)]} == {0.0}
            assert all(found.notes for found in blown)
            assert (await score(handler, "7", "7")).reward == 1.0, "no worker is lost"
            assert max(map(resident_bytes, idle_children(handler))) < base + (64 << 20), "memory is back to its base"
            return blown[len(bombs) :]
        finally:
            await handler.close()

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, judge()).result()
    assert [one.reward for one in found] == [1.0] * 50


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
