"""Task kinds of somebody else's, installed for real: the one in the documentation, word for word, and a broken one."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import Invalid
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.tasks.system_prompts import MATH
from rollyard.trajectory import Trajectory
from tests.support import environment_turns, evaluated_tasks, small_games
from tests.support.small_roots import busybox_root
from tests.support.yard import ROOT, Yard, end

pytestmark = [pytest.mark.slow(20), pytest.mark.asyncio(loop_scope="module")]

PLUGINS = {
    "entry_points.txt": "[rollyard.tasks]\nhaiku = my_package:HaikuHandler\nplanned = planned:PlannedHandler\n"
    "broken = my_broken_package:Handler\nrepair = repair:RepairHandler\ntyped = my_package:HaikuHandler\n"
    "evaluated = evaluated_tasks:EvaluatedHandler\n"
    "[rollyard.task_fields]\ntyped = my_fields:HaikuFields\nhaiku = nonesuch_package:Fields\n",
    "METADATA": "Metadata-Version: 2.1\nName: plugged-in\nVersion: 1\n",
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def plugged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"))
    folder = made.folder / "plugin"
    info = folder / "plugged_in-1.dist-info"
    info.mkdir(parents=True)
    for name, text in PLUGINS.items():
        (info / name).write_text(text)
    (folder / "my_package.py").write_text(_documented("task-handlers.md"))
    (folder / "my_fields.py").write_text(_documented("task-handlers.md", 1))
    (folder / "planned.py").write_text(_documented("task-handlers.md", 3))
    (folder / "repair.py").write_text(_documented("repositories.md"))
    (folder / "my_broken_package.py").write_text("import nonesuch_package\n")
    for module in (small_games, evaluated_tasks):
        shutil.copy(module.__file__, folder)
    made.env["PYTHONPATH"] = ":".join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    made.start()
    async with made.client() as client:
        await made.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await made.ready(client)
    yield made
    await end(made)


def _documented(page: str, number: int = 0) -> str:
    """Return a block of Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)[number]


async def test_the_documented_plug_in_works_and_what_goes_wrong_is_told_at_once(plugged: Yard) -> None:
    async with plugged.client() as client:

        async def ended(id: str, task: dict[str, Any], **more: Any) -> Trajectory:
            request = RolloutRequest.model_validate({"id": id, "pool": "demo", "task": task, **more})
            (trajectory,) = await plugged.gather(client, await client.submit([request]))
            return trajectory

        haiku = await ended("haiku", {"kind": "haiku", "topic": "rain"}, sampling={"max_tokens": 64})
        assert haiku.status.scored
        assert haiku.reward in (0.0, 1.0)
        assert "lines" in haiku.metrics
        assert sum(haiku.segments[0].loss_mask) > 0

        lacking = await ended("lacking", {"kind": "haiku"})
        source = (plugged.folder / "plugin" / "my_package.py").read_text().splitlines()
        line = next(n for n, text in enumerate(source, start=1) if "fields['topic']" in text)
        assert (lacking.status, lacking.reward, lacking.attempt) == (Status.FAILED, None, 1)
        assert lacking.error is not None
        assert lacking.error.reason == "HandlerFailed"
        where = f"{plugged.folder}/plugin/my_package.py:{line}"
        assert lacking.error.message == f"prompt() of task kind 'haiku' raised KeyError: 'topic' ({where})"

        with pytest.raises(
            Invalid,
            match=r"cannot load the handler of task kind 'broken': ModuleNotFoundError: No module named 'nonesuch_",
        ):
            await ended("broken", {"kind": "broken"})

        long = await ended("long", {"kind": "haiku", "topic": "rain"}, budgets={"context_tokens": 9})
        assert (long.status, long.reward, long.segments) == (Status.FAILED, None, [])
        assert long.error is not None
        assert long.error.reason == "ContextExceeded"
        assert re.search(
            r"the prompt has at least \d+ tokens and leaves no room for an answer: .* the context 9", long.error.message
        )

        mute = await ended(
            "mute", {"kind": "haiku", "topic": "rain"}, agent={"type": "command", "command": "echo no call"}
        )
        assert (mute.status, mute.reward, mute.attempt) == (Status.FAILED, None, 1)
        assert mute.error is not None
        assert "exit code 0 before its first model call: no call" in mute.error.message


async def test_the_documented_agent_loop_gives_each_conversation_its_segment(plugged: Yard) -> None:
    task = {"kind": "planned", "wish": "Count the files.", "answer": "two files"}
    async with plugged.client() as client:
        planned, short = await plugged.gather(
            client,
            [
                *await _submit(client, "planned", task, sampling={"max_tokens": 64}),
                *await _submit(client, "short", task, agent={"max_turns": 1}),
            ],
        )
    assert planned.status.scored
    assert planned.reward in (0.0, 1.0)
    assert {turn.segment for turn in planned.turns} == set(range(len(planned.segments))) >= {0, 1}
    for turn in planned.turns:
        segment, answer = (
            planned.segments[turn.segment],
            slice(turn.prompt_length, turn.prompt_length + turn.response_length),
        )
        assert segment.loss_mask[answer] == [1] * turn.response_length
        assert all(version for version in segment.weights_version[answer])
    assert (short.status, len(short.turns), short.reward) == (Status.TRUNCATED, 1, 0.0)
    assert short.cut_short == "the agent used all of its turns; `agent.max_turns` is 1"


async def test_a_plug_ins_fields_are_checked_before_a_rollout_exists(plugged: Yard) -> None:
    async with plugged.client() as client:
        with pytest.raises(
            Invalid, match=r"rollouts\[0\]: the typed task is invalid: task.topic: Field required"
        ) as found:
            await _submit(client, "untyped", {"kind": "typed", "lines": 0})
        assert [cause.field for cause in found.value.causes] == ["rollouts[0].task.topic", "rollouts[0].task.lines"]
        (ended,) = await plugged.gather(client, await _submit(client, "typed", {"kind": "typed", "topic": "rain"}))
    assert ended.status.scored


async def test_the_evaluator_has_the_image_and_the_time_of_its_own_that_the_pool_allows(plugged: Yard) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the sandboxes' account reaches the image
        image = busybox_root(Path(folder, "image"))
        (image / evaluated_tasks.MARKER.lstrip("/")).touch()
        task = {"kind": "evaluated", "metadata": {"difficulty": "hard", "level": 3}}
        evaluator = {"image": str(image), "memory": "256M", "network": False, "seconds": 30}
        async with plugged.client() as client:
            ids = [
                *await _submit(client, "own", {**task, "evaluator": evaluator}),
                *await _submit(client, "as-run", task),
            ]
            own, as_run = await plugged.gather(client, ids)
            artifact = await client.artifact("own")
            found = [view async for view in client.rollouts(metadata={"difficulty": "hard", "level": "3"})]
            easy = [view async for view in client.rollouts(metadata={"difficulty": "easy"})]
            with pytest.raises(
                Invalid, match=r"task.evaluator.memory: write at most [0-9]+., the pool's `sandbox.memory`"
            ):
                await _submit(client, "greedy", {**task, "evaluator": {"memory": "100G"}})
            absent = {**task, "evaluator": {"image": f"{folder}/absent"}}
            (id,) = await _submit(client, "absent", absent)

            async def waits() -> bool:
                waiting = (await client.rollout(id))[0].waiting
                return waiting is not None and f"{folder}/absent" in waiting.message

            await plugged.until(waits)
            assert (await client.rollout_history(id)).entries[-1].stage == "INIT", "no token was sampled for it"
            await client.cancel(id)
    assert (own.parts, as_run.parts) == ({"marker": 1.0, "raw": 1.0}, {"marker": 0.0, "raw": 1.0})
    assert (own.metrics["seconds"], as_run.metrics["seconds"]) == (24.0, 48.0), "0.8 of EVAL's time"
    assert artifact == {"raw": b"\xff\x00", "marker_in_run": "False"}
    assert ([view.id for view in found], easy) == (["own", "as-run"], [])
    assert found[0].metadata == own.task.fields["metadata"] == task["metadata"]
    listed, _ = await plugged.rollyard("rollouts", "list", "--metadata", "level=3", "--prefix", "own")
    assert [line.split()[0] for line in listed.splitlines()] == ["ID", "own"]
    described, _ = await plugged.rollyard("rollouts", "describe", "own")
    assert 'metadata {"difficulty": "hard", "level": 3}' in described
    assert "parts of the reward: {'marker': 1.0, 'raw': 1.0}" in described


async def test_the_documented_repair_of_a_repository_has_both_outcomes(plugged: Yard) -> None:
    env = {**os.environ, "ROLLYARD_KUBECONFIG": str(plugged.data / "admin.kubeconfig")}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the sandboxes' account reaches the image
        image, tests = busybox_root(Path(folder, "image")), Path(folder, "test_sums.py")
        (image / "app").mkdir()
        (image / "app/sums.py").write_text("def add(a, b):\n    return a - b\n")
        for path in (image / "app", image / "app/sums.py"):
            os.chown(path, sandbox_account().uid, sandbox_account().gid)  # the files of a folder keep their owners
        tests.write_text(
            "import unittest, sums\n"
            "class Sums(unittest.TestCase):\n"
            "    def test_add(self): self.assertEqual(sums.add(2, 3), 5)\n"
        )
        program = _documented("repositories.md", 1)
        for words, here in (
            ("built:sums:v1", str(image)),
            ("/tmp/sums-env/repo/test_sums.py", str(tests)),
            ("' sums.py", "' /app/sums.py"),  # a folder has no WORKDIR
        ):
            assert words in program
            program = program.replace(words, here)
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
        )
    ended = [line.split()[-3:] for line in done.stdout.splitlines()]
    assert ended == [["Completed", "0.0", "None"], ["Completed", "1.0", "None"]], done.stdout + done.stderr


async def test_a_class_with_reset_and_step_replies_to_the_policy(plugged: Yard) -> None:
    task = {"kind": "env", "framework": "class", "env": "small_games:Sums", "seed": 3}
    async with plugged.client() as client:
        ids = await _submit(client, "sums", {**task, "system": MATH, "tools": ["ipython"]}, n=4)
        ended = await plugged.gather(client, ids)
        boxed = {
            **task,
            "where": "sandbox",
            "files": {"/workspace/small_games.py": Path(small_games.__file__).read_text()},
        }
        (in_sandbox,) = await plugged.gather(client, await _submit(client, "boxed", boxed))
        ids = [*await _submit(client, "plain", task), *await _submit(client, "broken-game", {**task, "env": "nope:X"})]
        plain, broken = await plugged.gather(client, ids)
        _, columns = await client.rollout_columns(ended[0].id)
    question, _ = small_games.Sums().reset(3)
    for trajectory in ended:
        opening = [{"role": "system", "content": MATH}, {"role": "user", "content": question}]
        environment_turns.check(trajectory, opening, ["ipython"])
        steps = _steps(trajectory)
        assert [reward for _, reward in steps] == _rewards([text for text, _ in steps])
        if trajectory.status is Status.COMPLETED:
            assert (len(steps), trajectory.metrics["steps"]) == (3, 3.0)
    assert any(trajectory.reward for trajectory in ended), "the policy adds two numbers with its tool"
    for trajectory in (plain, in_sandbox):
        environment_turns.check(trajectory, [{"role": "user", "content": question}])
        assert [reward for _, reward in _steps(trajectory)] == _rewards([turn.text for turn in trajectory.turns])
        assert not any(turn.tool_results for turn in trajectory.turns), "without a tool nothing in a turn is a call"
    assert columns is not None
    assert [None if r != r else r for r in columns.turn_rewards.tolist()] == [t.reward for t in ended[0].turns]
    assert (broken.status, broken.reward, broken.attempt) == (Status.FAILED, None, 1)
    assert broken.error is not None
    assert (broken.error.stage, broken.error.reason) == ("INIT", "HandlerFailed")
    assert "the environment nope:X raised ModuleNotFoundError: No module named 'nope'" in broken.error.message


async def test_a_new_attempt_begins_with_a_new_environment(plugged: Yard) -> None:
    file = plugged.folder / "first-try"
    file.touch()
    game = {"env": "small_games:SecondTry", "arguments": {"file": str(file)}, "seed": 3}
    task = {"kind": "env", "framework": "class", **game, "system": MATH, "tools": ["ipython"]}
    async with plugged.client() as client:
        ids = await _submit(client, "second-try", task, sampling={"max_tokens": 64, "temperature": 0})
        (ended,) = await plugged.gather(client, ids)
    assert (ended.status, ended.attempt, file.exists()) == (Status.COMPLETED, 2, False)
    question, _ = small_games.Sums().reset(3)
    environment_turns.check(
        ended, [{"role": "system", "content": MATH}, {"role": "user", "content": question}], ["ipython"]
    )
    assert [reward for _, reward in _steps(ended)] == _rewards([text for text, _ in _steps(ended)])


async def test_a_command_cannot_have_an_environment(plugged: Yard) -> None:
    task = {"kind": "env", "framework": "class", "env": "small_games:Sums"}
    async with plugged.client() as client:
        ids = await _submit(client, "commanded", task, agent={"type": "command", "command": "true"})
        (ended,) = await plugged.gather(client, ids)
    assert ended.status is Status.FAILED
    assert ended.error is not None
    assert "replies to the built-in loop only" in ended.error.message


async def _submit(client: AsyncClient, id: str, task: dict[str, Any], **more: Any) -> list[str]:
    request = {"id": id, "pool": "demo", "task": task, "sampling": {"max_tokens": 64, "seed": 5}, **more}
    return await client.submit([RolloutRequest.model_validate(request)])


def _steps(trajectory: Trajectory) -> list[tuple[str, float | None]]:
    return [(turn.text, turn.reward) for turn in trajectory.turns if turn.observation is not None]


def _rewards(texts: list[str]) -> list[float]:
    """Rewards of the same environment, stepped here with these texts."""
    again = small_games.Sums()
    again.reset(3)
    return [again.step(text)[1] for text in texts]
