"""Environments in the rollout's own sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import HandlerFailed, NodeFault, SandboxLost, TaskError
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Reply
from rollyard.tasks.env import EnvHandler
from rollyard.tasks.guarded_handler import GuardedEnvironment, GuardedHandler
from rollyard.trajectory import Turn
from tests.support import small_games

GAMES = Path(small_games.__file__).read_text()
TURN = Turn(segment=0, prompt_length=1, response_length=1, text="go", finish_reason="stop")


async def start(sandbox: Sandbox, name: str, **fields: Any) -> GuardedEnvironment:
    files = {"/workspace/games.py": GAMES}
    task = Task(kind="env", framework="class", env=f"games:{name}", where="sandbox", files=files, **fields)
    handler = GuardedHandler("env", EnvHandler())
    await handler.init(task, sandbox)
    made = await handler.environment(task, sandbox)
    assert made is not None
    return made


async def test_it_plays_and_ends_with_its_connection(sandbox: Sandbox) -> None:
    question, _ = small_games.Sums().reset(3)
    made = await start(sandbox, "Sums", seed=3, arguments={"questions": 2})
    assert made.opening == [{"role": "user", "content": question}]
    right = await made.reply(TURN.model_copy(update={"text": f"\\boxed{{{eval(question[8:-1])}}}"}))
    assert right is not None
    assert (right.reward, right.done) == (0.5, False)
    assert await made.reply(TURN) == Reply("", 0.0, done=True)
    await made.close()
    assert sandbox.alive


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", HandlerFailed, r"raised LookupError: no such move \(/workspace/games.py:\d+\)"),
        ("exit", NodeFault, "ended with exit code 3 in the sandbox"),
        ("hang", NodeFault, r"did not end a step .* within 0.2 s"),
    ],
)
async def test_a_fault_is_never_a_reward(sandbox: Sandbox, how: str, error: type[Exception], message: str) -> None:
    made = await start(sandbox, "Broken", arguments={"how": how}, step_seconds=0.2 if how == "hang" else 60.0)
    with pytest.raises(error, match=message):
        await made.reply(TURN)
    await made.close()


async def test_a_python_that_is_not_in_the_image(sandbox: Sandbox) -> None:
    with pytest.raises(TaskError, match=r"ended with exit code 127 in the sandbox: .*No such file"):
        await start(sandbox, "Sums", python="/nonesuch/python")


async def test_a_lost_sandbox_is_told(sandbox: Sandbox) -> None:
    made = await start(sandbox, "Sums")
    await sandbox.close()
    with pytest.raises(SandboxLost):
        await made.reply(TURN)
    await made.close()
