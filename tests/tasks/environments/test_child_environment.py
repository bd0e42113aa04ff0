"""Environments in processes of their own: their replies, and how their faults are told apart."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rollyard.core.errors import HandlerFailed, Invalid, NodeFault, TaskError
from rollyard.kinds.task import Task
from rollyard.tasks import env
from rollyard.tasks.base import Evaluation, Reply, Score
from rollyard.tasks.environments.child_environment import ChildEnvironment
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.trajectory import Turn
from tests.support.yard import ROOT

GAMES = "tests.support.small_games"
SANDBOX: Any = None


@pytest.fixture(autouse=True)
def games_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def task(name: str, **fields: Any) -> Task:
    return Task(kind="env", framework="class", env=f"{GAMES}:{name}", **fields)


def turn(text: str) -> Turn:
    return Turn(segment=0, prompt_length=1, response_length=1, text=text, finish_reason="stop")


async def start(found: Task) -> GuardedEnvironment:
    made = await GuardedHandler("env", env.EnvHandler()).environment(found, SANDBOX)
    assert made is not None
    return made


async def test_steps_earn_rewards_and_the_same_seed_asks_the_same() -> None:
    first, again = await start(task("Sums", seed=4)), await start(task("Sums", seed=4, arguments={"questions": 1}))
    try:
        (question,) = first.opening
        assert question["role"] == "user"
        assert list(again.opening) == [question]
        a, _, b = question["content"].removeprefix("What is ").removesuffix("?").split()
        right = await first.reply(turn(f"It is \\boxed{{{int(a) + int(b)}}}."))
        assert right is not None
        assert (right.reward, right.done, right.role) == (0.5, False, "user")
        assert right.text.startswith("What is ")
        wrong = await again.reply(turn("I do not know"))
        assert wrong == Reply("", 0.0, done=True)
    finally:
        await first.close()
        await again.close()


async def test_an_environment_may_open_with_messages() -> None:
    for system, expected in ((None, ["Be kind.", "Begin."]), ("Be fast.", ["Begin."])):
        made = await start(task("Opened", system=system))
        assert [message["content"] for message in made.opening] == expected
        await made.close()


async def test_observations_may_be_tool_results() -> None:
    made = await start(task("Sums", observation_role="tool"))
    reply = await made.reply(turn("7"))
    await made.close()
    assert reply is not None
    assert (made.opening[0]["role"], reply.role) == ("user", "tool")


async def test_a_restored_environment_goes_on_as_the_saved_one() -> None:
    """Its seed is its own, so without its state the other one would play another game."""
    named = task("Ledger", seed=None, arguments={"name": "l", "steps": 3})
    first, other = await start(named), await start(named)
    try:
        assert first.saves
        assert other.opening != first.opening
        await first.reply(turn("one"))
        state = await first.state()
        second = await first.reply(turn("two"))
        for _ in range(2):  # an earlier state may come later too
            await other.restore(state)
            assert other.opening == first.opening
            assert await other.reply(turn("two")) == second
        assert await other.reply(turn("three")) == await first.reply(turn("three"))
    finally:
        await first.close()
        await other.close()
    plain = await start(task("Sums"))
    await plain.close()
    assert not plain.saves


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raises", HandlerFailed, r"Unsavable raised LookupError: no such page \(.*small_games.py:\d+\)"),
        ("async", HandlerFailed, r"state\(\) must be an ordinary method, without `async`"),
        ("object", HandlerFailed, "Object of type object is not JSON serializable"),
        ("long", HandlerFailed, r"state\(\) has 1048578 characters as JSON; 524288 are allowed"),
        ("exit", NodeFault, "ended with exit code 3"),
    ],
)
async def test_what_cannot_be_saved_is_told(how: str, error: type[Exception], message: str) -> None:
    made = await start(task("Unsavable", arguments={"name": how, "steps": 3}))
    try:
        with pytest.raises(error, match=message):
            await made.state()
        if error is HandlerFailed:
            with pytest.raises(HandlerFailed, match="LookupError"):
                await made.restore('{"opening": [], "state": null}')
            assert await made.reply(turn("it goes on")) is not None
    finally:
        await made.close()


async def test_the_older_form_and_texts_around_an_observation_are_read() -> None:
    made = await start(task("Older", seed=None))
    assert made.opening == [{"role": "user", "content": '{"at": 0}'}]
    assert await made.reply(turn("é\n")) == Reply('before\n{"at": "\\u00e9\\n"}\nafter', None, role="tool")
    await made.close()


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", HandlerFailed, r"Broken raised LookupError: no such move \(.*small_games.py:\d+\)"),
        ("shape", HandlerFailed, r"TypeError: step\(\) must return \(observation, reward"),
        ("type", HandlerFailed, "could not convert string to float"),
        ("nan", HandlerFailed, r"step\(\) returned the reward nan; a reward must be a finite number"),
        ("async", HandlerFailed, r"step\(\) must be an ordinary method, without `async`"),
        ("long", HandlerFailed, "the observation has 2097152 characters; 1048576 are allowed"),
        ("exit", NodeFault, "ended with exit code 3"),
        ("hang", NodeFault, r"did not end a step .* within 0.2 s"),
    ],
)
async def test_a_fault_is_never_a_reward(how: str, error: type[Exception], message: str) -> None:
    made = await start(task("Broken", arguments={"how": how}, step_seconds=0.2 if how == "hang" else 60.0))
    with pytest.raises(error, match=message) as found:
        await made.reply(turn("go"))
    assert isinstance(found.value, TaskError) == (error is HandlerFailed)
    await made.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"env": f"{GAMES}:Broken", "arguments": {"how": "reset"}}, "LookupError: no such level"),
        ({"env": f"{GAMES}:Nonesuch"}, "AttributeError: .*Nonesuch"),
        ({"env": "nonesuch_package:Game"}, "No module named 'nonesuch_package'; install it for .*python"),
        ({"env": f"{GAMES}:Sums", "python": "/nonesuch/python"}, "cannot be run on this node"),
    ],
)
async def test_an_environment_that_cannot_begin_fails_the_rollout(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        await start(Task(kind="env", framework="class", **fields))


async def test_an_environment_ends_with_its_rollout() -> None:
    made = await env.EnvHandler().environment(task("Sums"), SANDBOX)
    assert isinstance(made, ChildEnvironment)
    pid = made._child.pid
    await made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"framework": "class", "env": "Sums"}, "`env` is `module:Class`"),
        ({"framework": "openenv", "env": "node7:8000"}, "is the URL of a running server"),
        ({"framework": "openenv", "env": "http://node7", "python": "/usr/bin/python3"}, "leave it out"),
        ({"framework": "class", "env": "a:B", "where": "sandbox", "tools": ["bash"]}, "could change its environment"),
        ({"framework": "verifiers", "env": "x"}, "`index` is the place of a task"),
        ({"framework": "textarena", "env": "x", "index": 1}, "with `framework: verifiers` alone"),
        (
            {"framework": "gymnasium", "env": "x"},
            "Input should be 'class', 'gem', 'openenv', 'textarena' or 'verifiers'",
        ),
    ],
)
def test_a_wrong_task_is_told_what_it_can_say(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        env.EnvHandler().tools(Task(kind="env", **fields))


async def test_the_score_is_the_sum_of_the_turns_rewards() -> None:
    turns = [turn("a").model_copy(update={"observation": "b", "reward": r}) for r in (0.5, None, -0.25)]
    score = await env.EnvHandler().evaluate(task("Sums"), Evaluation({}, [*turns, turn("cut")], 1.0))
    assert score == Score(0.25, {"steps": 3.0}, ["the sum of the rewards of 3 replies of the environment"])
