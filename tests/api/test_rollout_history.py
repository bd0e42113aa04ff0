"""A rollout's history at the API and at its clients."""

from __future__ import annotations

from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_history import RolloutHistory
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
