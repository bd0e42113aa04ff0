"""An environment on a running server of OpenEnv.

OpenEnv's HTTP routes /reset and /step make a new environment for each request (openenv 0.10.0,
`core/env_server/http_server.py`). Only a connection to its route /ws keeps one environment from reset to the last step.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Self

import aiohttp

from rollyard.core.errors import HandlerFailed, NodeFault, connection_failure_text
from rollyard.kinds.env_task import EnvTask
from rollyard.tasks.base import Environment, Reply
from rollyard.tasks.environments.driver_environment import RESET, STEP, answer_within
from rollyard.trajectory import Turn

START_SECONDS = 60.0
MAX_MESSAGE_BYTES = 16 << 20
ENVIRONMENT_ERRORS = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""OpenEnv's codes of errors that the environment or the task caused. The others concern the server: no room, for example."""


class OpenEnvironment(Environment):
    """One environment, which lives as long as a connection to its server."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse, task: EnvTask) -> None:
        self._session = session
        self._socket = socket
        self._task = task

    @classmethod
    async def start(cls, task: EnvTask) -> Self:
        """Connect and reset. Raises NodeFault if the server cannot be reached or has no room, and HandlerFailed if the
        environment raises an exception."""
        session = aiohttp.ClientSession()
        try:
            async with answer_within(START_SECONDS, task.env, "the connection to its server"):
                socket = await session.ws_connect(f"{task.env.rstrip('/')}/ws", max_msg_size=MAX_MESSAGE_BYTES)
            made = cls(session, socket, task)
            seed = {} if task.seed is None else {"seed": task.seed}
            found = await made._ask("reset", {**task.arguments, **seed}, START_SECONDS, RESET)
            made.opening = [{"role": "user", "content": made._text(found)}]
        except (aiohttp.ClientError, OSError) as error:
            await session.close()
            raise NodeFault(f"the server {task.env} cannot be reached: {connection_failure_text(error)}") from None
        except BaseException:
            await session.close()
            raise
        return made

    async def reply(self, turn: Turn) -> Reply:
        """Step with the turn's text. Raises NodeFault and HandlerFailed, as `start` does."""
        found = await self._ask("step", {self._task.action_field: turn.text}, self._task.step_seconds, STEP)
        return Reply(self._text(found), found.get("reward"), bool(found.get("done")), self._task.observation_role)

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self._socket.close()
        await self._session.close()

    async def _ask(self, type: str, data: Mapping[str, Any], seconds: float, asked: str) -> dict[str, Any]:
        async with answer_within(seconds, self._task.env, asked):
            with contextlib.suppress(
                ConnectionError, aiohttp.ClientError
            ):  # the connection has ended, as `receive` tells
                await self._socket.send_str(json.dumps({"type": type, "data": data}))
            message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise NodeFault(f"the connection to the environment server {self._task.env} ended")
        answer = json.loads(message.data)
        found: dict[str, Any] = answer["data"]
        if answer["type"] == "error":
            fault = HandlerFailed if found.get("code") in ENVIRONMENT_ERRORS else NodeFault
            raise fault(f"the environment server {self._task.env} answered {found.get('code')}: {found.get('message')}")
        return found

    def _text(self, found: Mapping[str, Any]) -> str:
        """Return the observation as text. Raises HandlerFailed if the task names a field that is not there."""
        observation, field = found["observation"], self._task.observation_field
        if field is not None and field not in observation:
            fields = ", ".join(observation)
            raise HandlerFailed(f"the observation has no field {field!r}; set `observation_field` to one of {fields}")
        shown = observation if field is None else observation[field]
        return shown if isinstance(shown, str) else json.dumps(shown)
