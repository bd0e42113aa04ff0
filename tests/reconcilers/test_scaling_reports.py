"""Demand for an InferencePool: its servers' own heartbeats, and the sessions in the store."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.autoscaling import GpuLedger
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.inference_pool import InferencePoolObserver
from rollyard.reconcilers.pool_observation import PoolObservation
from rollyard.reconcilers.pool_size import decide_size
from rollyard.server.routing.endpoint_registry import STALE_SECONDS, EndpointRegistry
from rollyard.server.routing.session_index import SessionIndex
from tests.support import make
from tests.support.manual_clock import ManualClock
from tests.support.reconciler_site import Site

KEY = PoolKey("default", "policy")


def pool() -> InferencePool:
    return make.inference_pool(engine={"vllm": {}}, autoscaling={"maxReplicas": 8})


def allocation(name: str, **status: Any) -> Allocation:
    given = {"job_state": "RUNNING", "ready_at": "2026-01-01T00:00:00Z", **status}
    return make.allocation(name, pool="InferencePool", uid=name, **given)


def register(endpoints: EndpointRegistry, name: str) -> None:
    endpoints.register(KEY, make.identity(name), make.endpoint(f"default/{name}"))


def beat(endpoints: EndpointRegistry, name: str, **load: Any) -> None:
    assert endpoints.heartbeat(f"default/{name}", make.heartbeat(name, **load))


async def test_servers_that_were_not_heard_make_the_load_unknown(site: Site) -> None:
    clock = ManualClock()
    endpoints = EndpointRegistry(clock, SessionIndex())
    trade = InferencePoolObserver(endpoints, site.rollouts, list, lambda pool: 0, clock)
    loading = allocation("c", ready_at=None)

    async def look() -> PoolObservation:
        return await trade.observe(pool(), [allocation("a"), allocation("b"), loading])

    def said(found: PoolObservation) -> list[str]:
        return [m.describe() for m in found.metrics[1:]]

    assert said(await look()) == ["requests waiting unknown", "KV use unknown"], "the server has just started"
    register(endpoints, "a")
    register(endpoints, "b")
    assert (await look()).metrics[2].missing, "registered, and it has said nothing yet"
    beat(endpoints, "a", running=3, waiting=1, kv_usage=0.5)
    assert said(await look()) == ["requests waiting at least 1, target 5 each", "KV use at least 0.5, target 0.8 each"]
    beat(endpoints, "b", running=0, waiting=0, kv_usage=0.25)
    found = await look()
    assert said(found) == ["requests waiting 1, target 5 each", "KV use 0.75, target 0.8 each"]
    assert [(m.ready, m.load) for m in found.members] == [(True, 3), (True, 0), (False, 0)]
    clock.turn(STALE_SECONDS + 1)
    beat(endpoints, "a", waiting=1, kv_usage=0.5)
    endpoints.expire()
    assert said(await look()) == ["requests waiting at least 1, target 5 each", "KV use at least 0.5, target 0.8 each"]
    drained = evolve(allocation("b"), spec=evolve(allocation("b").spec, drain=True))
    assert said(await trade.observe(pool(), [allocation("a"), drained])) == [
        "requests waiting 1, target 5 each",
        "KV use 0.5, target 0.8 each",
    ]


async def test_endpoints_and_their_weights_are_of_one_moment(site: Site) -> None:
    endpoints = EndpointRegistry(ManualClock(), SessionIndex())

    def users() -> list[RolloutPool]:
        """A heartbeat arrives while the store counts the sessions."""
        beat(endpoints, "a", version="v2")
        return []

    trade = InferencePoolObserver(endpoints, site.rollouts, users, lambda pool: 0, ManualClock())
    register(endpoints, "a")
    beat(endpoints, "a", version="v1")
    found = await trade.observe(pool(), [allocation("a")])
    assert [e.weights_version for e in found.status_update["endpoints"]] == ["v2"]


async def test_sessions_are_those_of_every_pool_that_uses_it(site: Site) -> None:
    """Queued rollouts count once for each role, as far as there can be workers for them."""
    users = [
        RolloutPool.model_validate({"metadata": {"name": n}, "spec": {"replicas": r, "inference": roles}})
        for n, r, roles in (("swe", 1, {"policy": "policy"}), ("math", 9, {"policy": "policy", "judge": "policy"}))
    ]
    await site.submit(50, "swe")
    await site.submit(5, "math")
    clock = ManualClock()
    endpoints = EndpointRegistry(clock, SessionIndex())
    trade = InferencePoolObserver(endpoints, site.rollouts, lambda: users, lambda pool: 0, clock)
    found = (await trade.observe(pool(), [])).metrics[0]
    assert found.describe() == "sessions 13, target 48 each", (
        "three on the one small allocation of swe, and two times five"
    )


@pytest.mark.parametrize(
    ("phase", "outside", "live"),
    [("Pending", 0, 1), ("Updating", 0, 1), ("Updating", 3, 3), ("Complete", 0, 0), ("Failed", 0, 0), ("Superseded", 0, 0)],
)  # fmt: skip
async def test_a_pool_at_zero_with_a_weights_update_that_runs_gets_an_endpoint_to_prove_them(
    site: Site, phase: str, outside: int, live: int
) -> None:
    """Else the update would wait for ever, and its trainer with it. Sessions that there are suffice."""
    clock = ManualClock()
    target = make.weights("v2").current
    assert target is not None
    operation = {"target": target.model_dump(), "phase": phase, "startedAt": target.since}
    status = {
        "observedGeneration": 1,
        "weights": {**make.weights("v1").model_dump(by_alias=True), "operation": operation},
    }
    waiting = evolve(pool(), status=type(pool().status).model_validate(status))
    trade = InferencePoolObserver(
        EndpointRegistry(clock, SessionIndex()), site.rollouts, list, lambda pool: outside, clock
    )
    found = await trade.observe(waiting, [])
    assert found.metrics[0].total == live
    size = decide_size(waiting, None, found.metrics, GpuLedger(), clock.time())
    assert size.desired == min(live, 1)
