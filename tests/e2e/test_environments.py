"""Environments of released frameworks reply to the tiny policy: their rewards, and the tokens of their observations."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.tasks.system_prompts import MATH
from rollyard.trajectory import Trajectory
from tests.support import environment_turns
from tests.support.compatibility import Compatibility, installed
from tests.support.released import CACHE, environment
from tests.support.yard import ROOT, Yard

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long, pytest.mark.slow(90)]
SUPPORT = ROOT / "tests" / "support"
SETS = SUPPORT / "verifiers_tasksets"
NO_TOKENS: Any = {
    part: "it has texts alone; the trajectory has them" for part in ("tokens", "mask", "logprobs", "versions")
}
GROUPS = "all rollouts of a task begin with its seed"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.env["PYTHONPATH"] = f"{ROOT}:{SETS}"
    try:
        made.start()
        async with made.client() as client:
            start = {"stages": {"init": {"timeoutSeconds": 300}}}  # frameworks are imported there
            await made.apply(client, policy={"replicas": 1}, demo={"replicas": 1, **start})
            await made.ready(client)
            yield made, client
    finally:
        await made.clean_up()


async def test_gem_plays_with_the_policy(yard: tuple[Yard, AsyncClient], compatibility: Compatibility) -> None:
    folder = environment("gem-llm", "0.1.0", "python3.11")
    python = str(folder / "bin" / "python")
    tooled = {"python": python, "seed": 11, "system": MATH, "tools": ["ipython"]}
    spoken = "tests.support.gem_games:SpokenGuess"
    tasks: dict[str, dict[str, Any]] = {
        "guess": {"framework": "gem", "env": "game:GuessTheNumber-v0-easy", "python": python, "seed": 7},
        "spoken": {"framework": "class", "env": spoken, **tooled, "arguments": {"max_turns": 4}},
        "sum": {"framework": "gem", "env": "rg:chain_sum", **tooled},
    }
    ended = await played(yard, tasks, n=4)
    asked = [[t.task.fields["env"], t.task.fields["seed"], [text for text, _ in steps(t)]] for t in ended]
    again = replayed(python, "gem_games.py", asked)
    for trajectory, (_, *replies) in zip(ended, again, strict=True):
        compatibility.same("rewards", [reward for _, reward, _ in replies], [reward for _, reward in steps(trajectory)])
        assert trajectory.reward == sum(reward for _, reward, _ in replies)
        done = bool(replies) and replies[-1][2] and not cut(trajectory)
        assert (trajectory.status is Status.COMPLETED) == done
    first = {t.task.fields["env"]: reply[0] for t, reply in zip(ended, again, strict=True)}
    for trajectory in ended:
        fields = trajectory.task.fields
        system = [{"role": "system", "content": MATH}] if "system" in fields else []
        question = first[fields["env"]]
        suffix = "Enter your next guess." if fields["env"].startswith("game:") else ""
        opening = [*system, {"role": "user", "content": f"{question}{suffix}"}]
        environment_turns.check(trajectory, opening, fields.get("tools", ()))
    assert max(len(steps(t)) for t in ended) > 1, "a game of several turns"
    assert any(t.reward for t in ended if t.task.fields["env"] == spoken)
    version = installed("gem-llm", folder)
    ran = "`game:GuessTheNumber`, a game of several turns and `rg:chain_sum`; then the same with the stored texts"
    start = "a task of kind `env`"
    missing = {**NO_TOKENS, "groups": GROUPS}
    compatibility.row("GEM", version, start=start, page="environments.md", ran=ran, missing=missing)


async def test_openenv_plays_with_the_policy(yard: tuple[Yard, AsyncClient], compatibility: Compatibility) -> None:
    folder = environment("openenv", "0.10.0", "python3.11")
    command = [folder / "bin" / "python", SUPPORT / "echo_server.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            task = {"framework": "openenv", "env": url, "observation_field": "response", "seed": 5}
            ended = await played(yard, {"echo": task}, n=4)
        finally:
            server.terminate()
    for trajectory in ended:
        environment_turns.check(trajectory, [{"role": "user", "content": "What is 5 + 1?"}])
        rewards = [len(text) / 64 for text, _ in steps(trajectory)]
        compatibility.same("rewards", rewards, [reward for _, reward in steps(trajectory)])
        assert [t.observation for t in trajectory.turns] == [f"What is {n} + 1?" for n in (1, 2, 3)][: len(rewards)]
        assert (trajectory.status is Status.COMPLETED) == (len(rewards) == 3 and not cut(trajectory))
    assert any(t.status is Status.COMPLETED for t in ended)
    version = installed("openenv", folder)
    ran = "its own server with an environment of three turns"
    start = "a task of kind `env`"
    missing = {**NO_TOKENS, "groups": GROUPS}
    compatibility.row("OpenEnv", version, start=start, page="environments.md", ran=ran, missing=missing)


async def test_textarena_plays_with_the_policy(yard: tuple[Yard, AsyncClient], compatibility: Compatibility) -> None:
    folder = environment("textarena", "0.7.4", "python3.11")
    python, names = str(folder / "bin" / "python"), ("GuessTheNumber-v0", "TowerOfHanoi-v0")
    tasks = {
        f"arena-{name[:5].lower()}": {"framework": "textarena", "env": name, "python": python, "seed": 3}
        for name in names
    }
    ended = await played(yard, tasks, n=4)
    asked = [[t.task.fields["env"], 3, [text for text, _ in steps(t)]] for t in ended]
    for trajectory, (first, reward) in zip(ended, replayed(python, "arena_games.py", asked), strict=True):
        environment_turns.check(trajectory, [{"role": "user", "content": first}])
        if reward is not None:
            compatibility.same("rewards", reward, trajectory.reward)
    assert max(len(t.turns) for t in ended) > 1, "the first invalid guess does not end the game"
    two = {"kind": "env", **tasks["arena-guess"], "env": "TicTacToe-v0"}
    (refused,) = await ends(yard, [{"id": "two-players", "pool": "demo", "task": two}])
    assert refused.error is not None
    assert "TicTacToe-v0 is no game of one player" in refused.error.message
    version = installed("textarena", folder)
    ran = "`GuessTheNumber-v0` and `TowerOfHanoi-v0`; then the same with the stored texts"
    missing = {**NO_TOKENS, "groups": GROUPS}
    start = "a task of kind `env`"
    compatibility.row("TextArena", version, start=start, page="environments.md", ran=ran, missing=missing)


async def test_tasks_of_verifiers_play_with_the_policy(
    yard: tuple[Yard, AsyncClient], compatibility: Compatibility
) -> None:
    folder = environment("verifiers", "0.4.0", "python3.12")
    python = str(folder / "bin" / "python")
    tasks = {
        name: {"framework": "verifiers", "env": f"vf-{name}", "index": index, "python": python}
        for name, index in (("sums", 2), ("guesses", 0), ("words", 0))
    }
    ended = await played(yard, tasks, n=2)
    asked = [[t.task.fields["env"], t.task.fields["index"], [text for text, _ in steps(t)]] for t in ended]
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(SETS), "PATH": path, "UV_CACHE_DIR": str(CACHE / "uv")}
    openings: dict[str, list[Any]] = {
        "vf-sums": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 15 + 7?"}],
        "vf-guesses": [{"role": "user", "content": "What is 2 + 7?"}],
        "vf-words": [{"role": "user", "content": "What is 8 + 3?"}],
    }
    for trajectory, reward in zip(ended, replayed(python, "verifiers_rewards.py", asked, env), strict=True):
        environment_turns.check(trajectory, openings[str(trajectory.task.fields["env"])])
        if reward is not None:
            compatibility.same("rewards", reward, trajectory.reward)
    rewards = {t.task.fields["env"]: t.reward for t in ended if t.reward}
    assert rewards.keys() == openings.keys(), "each taskset gives a reward"
    assert max(len(t.turns) for t in ended) > 1
    version = installed("verifiers", folder)
    ran = "three tasksets, one with several turns; then the same texts with its own harness `null`"
    missing = {**NO_TOKENS, "groups": "one task of its own is one task here"}
    start = "a task of kind `env`"
    compatibility.row("verifiers, by name", version, start=start, page="environments.md", ran=ran, missing=missing)


def replayed(python: str, program: str, asked: Any, env: dict[str, str] | None = None) -> Any:
    """Return what a program of `tests/support` finds without Rollyard."""
    command = [python, SUPPORT / program]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, env=env, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1].removeprefix("REWARDS "))


async def played(yard: tuple[Yard, AsyncClient], tasks: dict[str, dict[str, Any]], n: int) -> list[Trajectory]:
    sampling = {"max_tokens": 128, "temperature": 0.7, "seed": 3}
    requests = [
        {"id": name, "pool": "demo", "task": {"kind": "env", **task}, "n": n, "sampling": sampling}
        for name, task in tasks.items()
    ]
    ended = await ends(yard, requests)
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    return ended


async def ends(yard: tuple[Yard, AsyncClient], requests: list[dict[str, Any]]) -> list[Trajectory]:
    made, client = yard
    ids = await client.submit([RolloutRequest.model_validate(r) for r in requests])
    return await made.gather(client, ids, 600)


def cut(trajectory: Trajectory) -> bool:
    """Whether `max_tokens` cut the last turn off. Such a rollout is Truncated, even if its environment is done."""
    return trajectory.turns[-1].finish_reason == "length"


def steps(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    return [(turn.text, turn.reward) for turn in trajectory.turns if turn.observation is not None]
