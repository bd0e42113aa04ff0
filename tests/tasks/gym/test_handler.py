"""The task kind `gym`: questions and rewards are those of the library, and an answer can do no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from rollyard.core.errors import TaskError
from rollyard.kinds.task import Task
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.gym.handler import GymHandler
from rollyard.tasks.installed_handlers import load_handlers
from rollyard.trajectory import Turn

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.heavy]
SANDBOX = cast(Any, None)
OWN = Path(__file__).with_name("own_rewards.py")
ATTACKED = ("countdown", "puzzle24", "simple_integration", "polynomial_multiplication", "string_insertion", "n_queens")
SHORT = ("string_insertion",)


def task(dataset: str, **fields: Any) -> Task:
    return Task.model_validate({"kind": "gym", "dataset": dataset, "seed": 7, "index": 3, **fields})


async def score(handler: GymHandler, found: Task, text: str, artifact: Any = None) -> Score:
    said = Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")
    asked = await handler.collect(found, SANDBOX) if artifact is None else artifact
    return await handler.evaluate(found, Evaluation(asked, [said], 60.0))


def own_rewards(*datasets: str) -> dict[str, Any]:
    """Return what the library itself asks and gives, in a process without any code of Rollyard."""
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run([sys.executable, OWN, *datasets], env=env, capture_output=True, text=True, check=True)
    return cast(dict[str, Any], json.loads(run.stdout.splitlines()[-1]))


OTHER_REWARDS = ("game_of_life_halting", "coin_flip", "puzzle24")
"""Data sets with a check of their own: what is not right gets 0."""


async def compare(handler: GymHandler, own: dict[str, Any]) -> None:
    for dataset, (question, rewards) in own.items():
        found = task(dataset)
        environment = await handler.environment(found, SANDBOX)
        system, asked = environment.opening
        assert "<answer>answer here</answer>" in system["content"]
        assert asked == {"role": "user", "content": question}, dataset
        for answer, reward in rewards:
            text = "I do not know" if answer is None else f"So it is\n<answer>{answer}</answer>"
            own_reward = (await score(handler, found, text, {"question": question})).reward
            if (dataset in OTHER_REWARDS and answer != rewards[0][0]) or "Integral(" in str(answer):
                assert own_reward <= min(reward, 0.99), (dataset, answer)
            else:
                assert own_reward == reward, (dataset, answer)


async def test_rewards_are_those_of_the_library(handler: GymHandler) -> None:
    await compare(handler, own_rewards("leg_counting", "countdown", "isomorphic_strings"))


@pytest.mark.long
async def test_rewards_of_all_data_sets_are_those_of_the_library(handler: GymHandler) -> None:
    own = own_rewards()
    assert len(own) > 100
    await compare(handler, own)


@pytest.mark.long
async def test_all_places_that_run_texts_are_known(installed: Path) -> None:
    found = subprocess.run(
        ["grep", "-rlE", r"\b(eval|exec|parse_expr|sympify)\(", "--include=*.py", installed / "reasoning_gym"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    read = {"countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"}
    read |= {"binary_matrix", "spiral_matrix", "string_insertion", "n_queens"}
    own_texts = {"number_sorting", "bitwise_arithmetic", "basic_arithmetic", "codeio", "propositional_logic"}
    own_texts |= {"generators_00_49", "generators_50_99"}
    assert {Path(name).stem for name in found} == read | own_texts


async def test_the_solution_is_the_entrys_answer_and_levels_change_the_entry(handler: GymHandler) -> None:
    plain, hard = task("chain_sum"), task("chain_sum", difficulty=2, level={"num_terms": 1})
    assert (await score(handler, plain, await handler.solve(plain, SANDBOX))).reward == 1.0
    assert (await score(handler, hard, await handler.solve(hard, SANDBOX))).reward == 1.0
    questions = [(await handler.collect(found, SANDBOX))["question"] for found in (plain, hard)]
    assert questions[0] != questions[1]
    with pytest.raises(TaskError, match="another question here"):
        await score(handler, plain, "", {"question": questions[1]})


async def test_a_composite_has_members_with_levels_of_their_own(handler: GymHandler) -> None:
    one = {"datasets": [{"name": "chain_sum", "weight": 1, "config": {}}]}
    member, hard, easy = (
        task("chain_sum", seed=8),
        {"curricula": {"chain_sum": {"attribute_levels": {"*": 2, "num_digits": 0}}}},
        {"curricula": {"chain_sum": {"attribute_levels": {"*": 0}, "weight": 0.5}}},
    )
    alone = task("chain_sum", seed=8, difficulty=2, level={"num_digits": 0})
    asked = [await question(handler, found) for found in (member, alone)]
    tasks = [task("composite", config=config) for config in (one, hard, easy)]
    assert [await question(handler, found) for found in tasks[:2]] == asked, "members have the next seeds"
    assert await question(handler, tasks[2]) not in asked
    for found in tasks:
        assert (await score(handler, found, await handler.solve(found, SANDBOX))).reward == 1.0


async def question(handler: GymHandler, found: Task) -> str:
    return str((await handler.collect(found, SANDBOX))["question"])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"dataset": "chain_summ"}, "no data set 'chain_summ'; there are chain_sum, "),
        ({"config": {"min_terms": 9, "max_terms": 2}}, "AssertionError"),
        ({"config": {"no_such_field": 1}}, "unexpected keyword argument 'no_such_field'"),
        ({"level": {"num_terms": 99}}, "Must be between 0 and"),
        ({"level": {"no_such": 1}}, "no attribute 'no_such'; it has num_terms, "),
        ({"dataset": "gsm_symbolic", "difficulty": 1}, "No curriculum registered"),
    ],
)
async def test_a_task_without_an_entry_has_no_verdict(handler: GymHandler, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(TaskError, match=why):
        await handler.environment(task(**{"dataset": "chain_sum", **fields}), SANDBOX)


@pytest.mark.parametrize(
    "dataset", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in ATTACKED]
)
async def test_no_answer_runs_hangs_or_names_the_reference(handler: GymHandler, tmp_path: Path, dataset: str) -> None:
    mark = tmp_path / "ran"
    found = task(dataset)
    asked = await handler.collect(found, SANDBOX)
    for answer in (
        f'__import__("os").system("touch {mark}")',
        f'[open("{mark}", "w")]',
        f"exec('open({str(mark)!r}, \"w\")')",
        "[oracle_answer]",
        "oracle_answer",
        "[entry['answer']]",
        "eval(chr(49))",
        "Symbol('x').func",
        "(" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "9" * 1_000_000,
        "\ud800",
        "<answer>" * 2000,
    ):
        scored = await score(handler, found, f"<answer>{answer}</answer>", asked)
        assert 0.0 <= scored.reward < 0.1, (dataset, answer[:50])
    assert not mark.exists()


@pytest.mark.long
async def test_an_answer_that_computes_for_ever_earns_nothing(handler: GymHandler) -> None:
    scored = await score(handler, task("countdown"), "<answer>9**9**9**9</answer>")
    assert (scored.reward, scored.metrics) == (0.0, {"answered": 1.0, "timed_out": 1.0})


async def test_without_the_library_the_kind_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "reasoning-gym" not in folder])
    handlers = load_handlers()
    await handlers.close()
    assert "-m pip install reasoning-gym==0.1.25` and restart it" in handlers.failed["gym"]
