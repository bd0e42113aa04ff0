"""A full queue refuses submits, and the client waits."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.client.async_client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest
from rollyard.server.rollouts import queue_limit
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import change, pool, submit
from tests.server.batches.conftest import task
from tests.support.outside_api import Serve


def request(id: str) -> RolloutRequest:
    return RolloutRequest(id=id, pool="swe", task=task(0))


async def test_a_client_waits_until_the_queue_has_room(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_limit, "RETRY_SECONDS", 1)
    monkeypatch.setattr(queue_limit, "RECOUNT_SECONDS", 0.0)
    warned: list[str] = []
    async with serving() as api, client_of(api) as client:
        await pool(api, maxQueuedRollouts=2)
        assert (await submit(api, "a", "b"))[0] == 202
        status, body = await submit(api, "c")
        assert (status, body["reason"], body["details"]["retryAfterSeconds"]) == (429, "TooManyRequests", 1)
        patient = AsyncClient(client.context, warn=warned.append)
        async with patient, asyncio.TaskGroup() as group:
            waiting = group.create_task(patient.submit([request("c"), request("d")]))
            async with asyncio.timeout(60):
                while not warned:
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            await client.cancel_rollouts(pool="swe")
        assert waiting.result() == ["c", "d"]
        assert len(warned) == 1
        assert "the submit waits: the queue of RolloutPool 'swe' is full" in warned[0]
        await change(api, maxQueuedRollouts=None)
        assert (await submit(api, "e", "f"))[0] == 202
