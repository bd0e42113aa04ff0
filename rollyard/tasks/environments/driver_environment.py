"""An environment that the program `driver` runs: requests and answers are lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollyard.core.errors import HandlerFailed, NodeFault, RollyardError
from rollyard.kinds.env_task import EnvTask
from rollyard.tasks.base import Reply, SavableEnvironment
from rollyard.tasks.environments import driver
from rollyard.trajectory import Turn

PROGRAM = Path(driver.__file__)
ADAPTERS = {name: PROGRAM.with_name(f"{name}_adapter.py") for name in driver.ADAPTED}
START_SECONDS = 240.0
"""Limit for the start of an environment. The import of a framework takes seconds, and longer on a busy machine. INIT's
budget may be shorter."""
RESET, STEP = "its start and `reset`", "a step (the task's `step_seconds` limits it)"
SAVE, RESTORE = ("`state` (the task's `step_seconds` limits it)", "`restore`")
MAX_LINE_BYTES = 16 << 20
"""Greatest length of an answer. A character of an observation has six bytes in JSON at most, or twelve for an emoji."""


class DriverEnvironment(SavableEnvironment):
    """One environment in a process of its own. A subclass starts and ends the process."""

    def __init__(self, task: EnvTask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._task = task
        self._reader = reader
        self._writer = writer

    async def begin(self) -> None:
        """Make the environment and reset it. Raises as `reply` does."""
        task = self._task
        arguments = task.arguments if task.index is None else {**task.arguments, "index": task.index}
        spec = {"framework": task.framework, "env": task.env, "arguments": arguments, "seed": task.seed}
        first = await self._ask(spec, START_SECONDS, RESET)
        opening = first["messages"] or [{"role": "user", "content": first["text"]}]
        if task.system is not None:  # it takes the place of the environment's own
            opening = [message for message in opening if message["role"] != "system"]
        self.opening, self.saves = opening, first["saves"]

    async def reply(self, turn: Turn) -> Reply:
        """Step with the turn's text. Raises HandlerFailed if the environment raises an exception, and NodeFault if its
        process ends or does not answer."""
        reply = Reply(**await self._ask({"action": turn.text}, self._task.step_seconds, STEP))
        return reply if self._task.observation_role == "user" else replace(reply, role="tool")

    async def state(self) -> str:
        """Return the environment's state as JSON, with the messages with which it has opened. Raises as `reply` does."""
        found = await self._ask({"save": True}, self._task.step_seconds, SAVE)
        return json.dumps({"opening": self.opening, "state": found["state"]})

    async def restore(self, state: str) -> None:
        """Raises as `reply` does."""
        saved = json.loads(state)
        await self._ask({"restore": saved["state"]}, START_SECONDS, RESTORE)
        self.opening = saved["opening"]

    @abstractmethod
    async def why_ended(self) -> RollyardError:
        """Return an error that describes how the process ended."""

    async def _ask(self, question: Mapping[str, Any], seconds: float, asked: str) -> dict[str, Any]:
        async with answer_within(seconds, self._task.env, asked):
            line = b""
            with contextlib.suppress(ConnectionError):  # the process has ended
                self._writer.write(json.dumps(question).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise await self.why_ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HandlerFailed(f"the environment {self._task.env} raised {answer['error']}")
        return answer


@contextlib.asynccontextmanager
async def answer_within(seconds: float, env: str, asked: str) -> AsyncIterator[None]:
    """Limit the wait for an answer of an environment. `asked`: what it does, for people. Raises NodeFault."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise NodeFault(f"the environment {env} did not end {asked} within {seconds:g} s") from None
