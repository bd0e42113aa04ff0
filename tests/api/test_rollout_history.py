"""A rollout's history at the API and at its clients."""

from __future__ import annotations

import pytest

from rollyard.api import rollouts
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_history import LossSummary, RolloutHistory
from rollyard.wire.node import LeaseRef
from tests.api.test_rollouts_waiting import pool, submit
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool


async def history(api: Api, id: str) -> RolloutHistory:
    status, body = await api.ask("GET", f"/v1/rollouts/{id}/history")
    assert status == 200, body
    assert not any(value is None for entry in body["entries"] for value in entry.values())
    return RolloutHistory.model_validate(body)


async def test_a_history_is_told_from_the_queue_to_the_end_and_over_a_restart(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        assert (await submit(api, "r"))[0] == 202
        assert [e.event for e in (await history(api, "r")).entries] == ["Queued"]
        played = PlayedPool(api.parts)
        (record,) = await played.lease()
        leases = api.parts.leases
        leases.add(record)
        leases.renew("u/i", [LeaseRef(namespace="default", id="r", fence=record.fence, stage=Stage.RUN)])
        running = await history(api, "r")
        assert [(e.event, e.stage) for e in running.entries[1:]] == [("Leased", Stage.INIT), ("StageBegun", Stage.RUN)]
        await played.finish(record, Played(reward=0.5, seconds=2.5))
        ended = await history(api, "r")
        assert ended.entries[:3] == running.entries, "what was shown is what is kept"
        end = ended.entries[3]
        assert (end.event, end.status, end.reward, end.seconds) == ("Ended", Status.COMPLETED, 0.5, {"run": 2.5})
        assert ended.dropped == 0
    async with serving() as api:
        assert await history(api, "r") == ended
        assert (await api.ask("GET", "/v1/rollouts/none/history"))[0] == 404
        assert (await api.ask("GET", "/v1/rollouts/r/history?wait=1"))[0] == 400


async def test_a_lost_lease_is_found_although_its_rollout_ended_well(serving: Serve) -> None:
    """It was in no count: the rollout has a reward, and its count of lost leases in a row begins again after RUN."""
    async with serving() as api:
        await pool(api)
        for id in ("r", "s"):
            await submit(api, id)
        played = PlayedPool(api.parts)
        (record,) = await played.lease()
        await api.rollouts.lose(LeaseRef(namespace="default", id="r", fence=record.fence, stage=Stage.RUN), "Expired")
        assert await played.play(lambda _: Played()) == 2
        losses = LossSummary.model_validate((await api.ask("GET", "/v1/rollouts/losses"))[1])
        (row,) = losses.rows
        assert (row.reason, row.node, row.losses, row.rollouts, row.newest) == ("Expired", "node", 1, 1, record.id)
        assert not losses.more
        assert (await api.ask("GET", f"/v1/rollouts/losses?since={row.newest_at + 1}"))[1]["rows"] == []
        found = (await api.ask("GET", "/v1/rollouts?lost=true&total=true"))[1]
        assert [(one["id"], one["status"], one["lost"]) for one in found["rollouts"]] == [(record.id, "Completed", 1)]
        assert found["total"] == 1
        (summed,) = (await api.ask("GET", "/v1/rollouts/summary?lost=true&by=status"))[1]["rows"]
        assert (summed["value"], summed["rollouts"]) == ("Completed", 1)


async def test_only_the_newest_rollouts_with_losses_are_counted(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "MAX_LIMIT", 1)
    async with serving() as api:
        await pool(api)
        for id in ("r", "s"):
            await submit(api, id)
        for record in await PlayedPool(api.parts).lease(2):
            await api.rollouts.lose(LeaseRef(namespace="default", id=record.id, fence=1, stage=Stage.RUN), "Expired")
        status, body = await api.ask("GET", "/v1/rollouts/losses")
        assert (status, body["more"], [row["newest"] for row in body["rows"]]) == (200, True, ["s"])
