"""An environment in a child process of the node agent, run by the Python in which the environment is installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rollyard.core.errors import HandlerFailed, NodeFault, TaskError
from rollyard.kinds.rollout import Turn
from rollyard.kinds.task_fields import EnvTask
from rollyard.node.agents.tasks.base import Environment, Reply
from rollyard.node.agents.tasks.environments import driver

PROGRAM = Path(driver.__file__)
START_SECONDS = 240.0
"""Limit for the start of an environment. The import of a framework takes seconds, and longer on a busy machine. INIT's
budget may be shorter."""
MAX_LINE_BYTES = 16 << 20
"""Greatest length of an answer. A character of an observation has six bytes in JSON at most, or twelve for an emoji."""


class ChildEnvironment(Environment):
    """One environment, which has a process of its own. No process of a sandbox can reach that process."""

    def __init__(self, child: asyncio.subprocess.Process, task: EnvTask) -> None:
        self._child = child
        self._task = task

    @classmethod
    async def start(cls, task: EnvTask) -> Self:
        """Start the process and reset the environment.

        Raises TaskError if there is no such interpreter, HandlerFailed if the environment raises an exception, and
        NodeFault if the process ends or does not answer.
        """
        child = await _start_process(task.python or sys.executable)
        made = cls(child, task)
        try:
            spec = {"framework": task.framework, "env": task.env, "arguments": task.arguments, "seed": task.seed}
            first = await made._ask(spec, START_SECONDS)
        except BaseException:
            await made.close()
            raise
        made.opening = [{"role": "user", "content": first["text"]}]
        return made

    async def reply(self, turn: Turn) -> Reply:
        """Step with the turn's text. Raises HandlerFailed and NodeFault, as `start` does."""
        reply = Reply(**await self._ask({"action": turn.text}, self._task.step_seconds))
        return reply if self._task.observation_role == "user" else replace(reply, role="tool")

    async def close(self) -> None:
        self._kill()
        await self._child.wait()

    async def _ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        async with answer_within(seconds, self._task.env):
            with contextlib.suppress(ConnectionError):  # the child has ended, so its output ends too
                child.stdin.write(json.dumps(question).encode() + b"\n")
                await child.stdin.drain()
            line = await child.stdout.readline()
        if not line.endswith(b"\n"):
            await self.close()
            code = child.returncode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise NodeFault(
                f"the process of the environment {self._task.env} ended with {how}; see this node agent's log"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HandlerFailed(f"the environment {self._task.env} raised {answer['error']}")
        return answer

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._child.returncode is None:
                os.killpg(self._child.pid, signal.SIGKILL)
        # As in `checker_pool`: pipes that the garbage collector closes after the loop's end cause a warning.
        self._child._transport.close()  # type: ignore[attr-defined]


async def _start_process(python: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            python, str(PROGRAM), stdin=pipe, stdout=pipe, start_new_session=True, limit=MAX_LINE_BYTES
        )
    except (FileNotFoundError, PermissionError) as error:
        raise TaskError(f"`python` of the task cannot be run on this node: {error}") from None


@contextlib.asynccontextmanager
async def answer_within(seconds: float, env: str) -> AsyncIterator[None]:
    """Limit the wait for an answer of an environment. Raises NodeFault."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise NodeFault(f"the environment {env} did not answer within {seconds:g} s") from None
