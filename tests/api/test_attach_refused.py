"""Attachments that the server refuses, each with what one can do: an older node agent, and one that is not back yet."""

from __future__ import annotations

import pytest

from rollyard.core.errors import ApiError, RequestTimeout, Unavailable
from rollyard.kinds.pool import PoolKey
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.wire.attach import AttachKind, Start
from rollyard.wire.base import Identity
from rollyard.wire.node import Attach, ToNode
from tests.api.test_columns import a_client, leased
from tests.support.outside_api import Api, Serve

EXEC = Start(kind=AttachKind.EXEC, command=["true"])


async def refused(api: Api, kind: type[ApiError]) -> str:
    with pytest.raises(kind) as caught:
        await attach(api)
    return str(caught.value)


async def attach(api: Api) -> None:
    async with a_client(api) as client, client.attach("r", EXEC) as attached:
        async for _ in attached.output():
            pass


async def test_after_a_restart_of_the_server_exec_works_when_the_node_agent_is_back(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.api.attach.START_SECONDS", 0.1)
    async with serving() as api:
        await leased(api, "r")
    async with serving() as api:
        assert "is not connected now; try again in a few seconds" in await refused(api, Unavailable)
        sent: list[ToNode] = []
        connect(api, sent)
        assert "did not answer within 0.1 s; try again" in await refused(api, RequestTimeout)
        (asked,) = [message for message in sent if isinstance(message, Attach)]
        assert (asked.lease.id, asked.kind) == ("r", "exec")


def connect(api: Api, sent: list[ToNode]) -> None:
    identity = Identity(allocation="swe-0", namespace="default", uid="u", job_id="1", instance="i", node="n1")
    pool = PoolKey("default", "swe")
    api.node_agents.connect(ConnectedNodeAgent(identity, pool, sent.append, expel=lambda: None))
