"""Environments on a server that answers as OpenEnv's does; `tests/e2e/test_environments.py` runs OpenEnv itself."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from rollyard.core.errors import HandlerFailed, NodeFault
from rollyard.kinds.env_task import EnvTask
from rollyard.tasks.base import Reply
from rollyard.tasks.environments.openenv import OpenEnvironment
from rollyard.trajectory import Turn

TURN = Turn(segment=0, prompt_length=1, response_length=1, text="hi", finish_reason="stop")


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[Any], list[Any]]]:
    """URL, the messages that arrived, and the answers to give; the connection ends after the last answer."""
    arrived: list[Any] = []
    answers: list[Any] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        async for message in connection:
            assert message.type is WSMsgType.TEXT
            arrived.append(json.loads(message.data))
            if not answers:
                break
            await connection.send_str(json.dumps(answers.pop(0)))
        return connection

    app = web.Application()
    app.router.add_get("/ws", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", arrived, answers
    await runner.cleanup()


def observed(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"said": said, "turns": 1}, "reward": None, **more}}


def refused(code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": "why"}}


async def test_an_episode(server: tuple[str, list[Any], list[Any]]) -> None:
    url, arrived, answers = server
    answers += [observed("begin", done=False), observed("end", reward=1, done=True)]
    task = EnvTask(framework="openenv", env=url, seed=4, arguments={"level": 2}, observation_field="said")
    made = await OpenEnvironment.start(task)
    assert made.opening == [{"role": "user", "content": "begin"}]
    assert await made.reply(TURN) == Reply("end", 1, done=True)
    await made.close()
    assert arrived == [
        {"type": "reset", "data": {"level": 2, "seed": 4}}, {"type": "step", "data": {"message": "hi"}}
    ]  # fmt: skip


async def test_without_a_field_the_whole_observation_is_shown(server: tuple[str, list[Any], list[Any]]) -> None:
    server[2].append(observed("begin"))
    made = await OpenEnvironment.start(EnvTask(framework="openenv", env=server[0], seed=None))
    assert made.opening == [{"role": "user", "content": '{"said": "begin", "turns": 1}'}]
    assert server[1] == [{"type": "reset", "data": {}}]
    await made.close()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (refused("EXECUTION_ERROR"), HandlerFailed, "answered EXECUTION_ERROR: why"),
        (refused("VALIDATION_ERROR"), HandlerFailed, "answered VALIDATION_ERROR: why"),
        (refused("CAPACITY_REACHED"), NodeFault, "answered CAPACITY_REACHED: why"),
        (None, NodeFault, "the connection to the environment server .* ended"),
        (observed("x"), HandlerFailed, "no field 'text'; set `observation_field` to one of said, turns"),
    ],
)
async def test_the_environments_faults_and_the_servers(
    server: tuple[str, list[Any], list[Any]], answer: Any, error: type[Exception], message: str
) -> None:
    server[2].extend([] if answer is None else [answer])
    with pytest.raises(error, match=message):
        await OpenEnvironment.start(EnvTask(framework="openenv", env=server[0], observation_field="text"))


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as bound:  # nothing listens on this port
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(NodeFault, match="cannot be reached: ClientConnectorError"):
            await OpenEnvironment.start(EnvTask(framework="openenv", env=url))
