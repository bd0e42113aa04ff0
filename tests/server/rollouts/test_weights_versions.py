"""Least versions, groups of one version and staleness, through the real store, dispatcher and service."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from rollyard.core.errors import Conflict
from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey, Stage, Status
from rollyard.kinds.weights import WeightsOperation, WeightsRecord
from rollyard.server.rollouts.results import view
from rollyard.server.rollouts.staleness_watch import GRACE_SECONDS, StalenessWatch
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.store.base import RolloutRecord
from rollyard.wire.node import Cancel
from tests.server.rollouts.test_service import (
    Yard,
    header,
    identity,
    lose_often,
    request,
    until,
    yard,  # noqa: F401 - it is a fixture
)
from tests.support import make
from tests.support.reports import finish, run_stored

POOL = PoolKey("default", "policy-pool")


class Versions:
    """The pool `policy-pool`, as its controller and its engines would move it."""

    def __init__(self, yard: Yard) -> None:  # noqa: F811
        self.yard = yard
        self.history: list[str] = []
        self.watch = yard.parts.weights_watch

    def current(self, version: str) -> None:
        self.history.append(version)
        self.yard.endpoints.follow_weights(POOL, make.weights(*self.history))

    def updating(self, version: str) -> None:
        """In the middle of an update: the version before it and this one are both in the heap."""
        now, before = datetime(2026, 1, 1, tzinfo=UTC), self.yard.endpoints.weights(POOL)
        target = WeightsRecord(version=version, path="/w", number=len(self.history) + 1, since=now)
        operation = WeightsOperation(target=target, phase="Updating", started_at=now)
        update = {"operation": operation, "history": [*before.history, target]}
        self.yard.endpoints.follow_weights(POOL, evolve(before, **update))

    def serves(self, name: str, version: str, **load: float) -> None:
        if self.yard.endpoints.get(name) is None:
            self.yard.engine(name)
        endpoints: EndpointRegistry = self.yard.endpoints
        assert endpoints.heartbeat(name, make.heartbeat(name, version=version, **load))

    async def look(self) -> int:
        return await self.watch.check_pool(self.yard.pool)

    async def waits(self) -> None:
        """Turn the clock until versions that no endpoint serves now count as gone."""
        self.yard.clock.turn(GRACE_SECONDS)

    async def records(self, *ids: str) -> list[RolloutRecord]:
        return [await self.yard.rollouts.get("default", id) for id in ids]


@pytest.fixture
async def versions(yard: Yard) -> Versions:  # noqa: F811
    await yard.declare(inference={"policy": POOL[1]})
    made = Versions(yard)
    made.current("v1")
    made.serves("e1", "v1")
    return made


async def submit(versions: Versions, **more: Any) -> list[str]:
    accepted = await versions.yard.rollouts.submit("default", [request("a", **more)])
    return [r.id for r, _ in accepted]


async def test_a_least_version_waits_in_the_queue_and_holds_nobody_up(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    many = [request(f"later-{i}", min_weights_version="v2") for i in range(1200)]
    await yard.rollouts.submit("default", many)
    await yard.rollouts.submit("default", [request("now", min_weights_version="v1"), request("any")])
    node = yard.node(init=4)
    await until(lambda: {lease.id for lease in node.leases} == {"now", "any"})
    assert {lease.endpoints["policy"].weights_version for lease in node.leases} == {"v1"}
    versions.current("v2")
    versions.serves("e1", "v2")
    await until(lambda: len(node.leases) == 4)
    assert [lease.id for lease in node.leases[2:]] == ["later-0", "later-1"]
    (record,) = await versions.records("later-0")
    assert record.weights_version == "v2"


async def test_one_whose_weights_are_full_holds_nobody_up(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    versions.updating("v2")
    versions.serves("e2", "v2")
    await submit(versions, min_weights_version="v2")
    node = yard.node(init=1)
    await until(lambda: [lease.endpoints["policy"].id for lease in node.leases] == ["e2"])
    versions.serves("e2", "v2", running=1, kv_usage=0.99)
    await yard.rollouts.submit("default", [request("first", min_weights_version="v2"), request("any")])
    yard.wants(node, init=2)
    await until(lambda: [(lease.id, lease.endpoints["policy"].id) for lease in node.leases[1:]] == [("any", "e1")])
    assert node.agent.free_init == 1, "there is room for one more"
    versions.serves("e2", "v2", running=1, kv_usage=0.1)
    await until(lambda: [lease.id for lease in node.leases[2:]] == ["first"])


async def test_one_that_must_run_alone_and_whose_weights_are_full_keeps_no_node_agent(versions: Versions) -> None:
    yard, node = versions.yard, versions.yard.node()  # noqa: F811
    versions.updating("v2")
    versions.serves("e2", "v2")
    await submit(versions, min_weights_version="v2")
    await lose_often(yard, node, 1)
    await yard.rollouts.submit("default", [request("first", min_weights_version="v2", priority=1)])
    other = yard.node("u2", init=1)
    await until(lambda: [lease.id for lease in other.leases] == ["first"])
    versions.serves("e1", "v1")
    versions.serves("e2", "v2", running=1, kv_usage=0.99)
    await yard.rollouts.submit("default", [request("any")])
    yard.wants(node, init=1)
    await until(lambda: node.leases[-1].id == "any")


async def test_what_falls_too_far_behind_begins_anew(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    await submit(versions, max_staleness=1)
    node = yard.node(init=1)
    await until(lambda: len(node.leases) == 1)
    versions.current("v2")
    versions.serves("e1", "v2")
    assert await versions.look() == 0, "one behind is allowed"
    versions.current("v3")
    versions.serves("e1", "v3")
    yard.wants(node)
    assert await versions.look() == 1
    (record,) = await versions.records("a")
    assert (record.status, record.faults, record.losses, record.outdated) == (Status.QUEUED, 0, 0, 1)
    assert record.error is not None
    assert "2 versions behind v3 (max_staleness 1)" in record.error.message
    assert any(isinstance(m, Cancel) for m in node.sent), "its node agent stops"
    assert await versions.look() == 0
    yard.wants(node, init=1)
    await until(lambda: len(node.leases) == 2)
    assert view(*await versions.records("a")).weights_versions == ["v3"], "before the tokens: those of the lease"
    await run_stored(yard.rollouts, node.leases[1], "u1", b"run", frozenset({"v3", "v4"}))
    await finish(yard.rollouts, header(node.leases[1]), "u1", None)
    (record,) = await versions.records("a")
    assert (record.status, record.weights_version, record.error) == (Status.COMPLETED, "v3", None)
    assert view(record).weights_versions == ["v3", "v4"], "the versions of the tokens"


async def test_a_group_of_one_version_of_which_nothing_is_sampled_begins_anew(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    ids = await submit(versions, n=3, group_version="same")
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    yard.wants(node)
    versions.current("v2")
    versions.serves("e1", "v2")
    assert await versions.look() == 2
    assert {r.status for r in await versions.records(*ids)} == {Status.QUEUED}
    yard.wants(node, init=3)
    await until(lambda: len(node.leases) == 5)
    assert {r.weights_version for r in await versions.records(*ids)} == {"v2"}


async def test_what_is_left_of_a_group_whose_version_is_gone_ends(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    ids = await submit(versions, n=3, group_version="same")
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    yard.wants(node)
    first = node.leases[0]
    await run_stored(yard.rollouts, first, "u1", b"run", frozenset({"v1"}))
    versions.current("v2")
    versions.serves("e1", "v2")
    assert await versions.look() == 1, "the one that ran comes back"
    await versions.waits()
    assert await versions.look() == 2, "nobody serves v1 any more: it and the one in the queue end"
    await finish(yard.rollouts, header(first), "u1", b"outcome")
    found = await versions.records(*ids)
    assert sorted(r.status for r in found) == [Status.CANCELLED, Status.CANCELLED, Status.COMPLETED]
    assert {r.error.reason for r in found if r.error is not None} == {"WeightsVersionGone"}
    assert {r.reward for r in found if r.status is Status.CANCELLED} == {None}


async def test_what_a_server_that_has_just_started_does_not_know_ends_nothing(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    ids = await submit(versions, n=2, group_version="same")
    node = yard.node(init=1)
    await until(lambda: len(node.leases) == 1)
    await run_stored(yard.rollouts, node.leases[0], "u1", b"run", frozenset({"v1"}))
    yard.endpoints.forget(identity("e1").uid)
    yard.endpoints.follow_weights(POOL, None)
    versions.watch = StalenessWatch(
        yard.rollouts, yard.endpoints, StoredPools(yard.store.objects).rollout_pools, yard.clock
    )
    assert await versions.look() == 0, "the pool's status has not been read"
    versions.current("v2")
    versions.updating("v3")
    assert await versions.look() == 0, "no engine has registered"
    versions.serves("e1", "v1")
    await versions.waits()
    assert await versions.look() == 0, "it has v1"
    yard.endpoints.probed("e1", Reason("Unreachable", "reset by peer"))
    assert await versions.look() == 0, "it may be healthy in a moment"
    await versions.waits()
    assert await versions.look() == 1
    assert {r.status for r in await versions.records(*ids)} == {Status.CANCELLED, Status.RUNNING}


async def test_while_another_endpoint_has_its_version_a_group_goes_on_there(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    ids = await submit(versions, n=2, group_version="same")
    node = yard.node(init=1)
    await until(lambda: len(node.leases) == 1)
    await run_stored(yard.rollouts, node.leases[0], "u1", b"run", frozenset({"v1"}))
    versions.serves("e2", "v1")
    versions.updating("v2")
    versions.serves("e1", "v2")
    assert await versions.look() == 0
    yard.wants(node, init=1)
    await until(lambda: len(node.leases) == 2)
    assert node.leases[1].endpoints["policy"].id == "e2"
    assert {r.weights_version for r in await versions.records(*ids)} == {"v1"}


async def test_a_run_that_an_update_went_through_is_not_taken_for_one_version(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    ids = await submit(versions, n=2, group_version="same")
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    yard.wants(node)
    await run_stored(yard.rollouts, node.leases[0], "u1", b"run", frozenset({"v1", "v2"}))
    record = (await versions.records(node.leases[0].id))[0]
    assert (record.status, record.stage, record.result, record.outdated) == (Status.QUEUED, Stage.INIT, None, 1)
    assert len(ids) == 2


async def test_a_default_that_is_named_attaches_to_the_same_rollout(versions: Versions) -> None:
    await submit(versions)
    (record,) = await versions.records("a")
    assert record.weights is None
    await submit(versions, min_weights_version=None, group_version="any", priority=0)
    with pytest.raises(Conflict):
        await submit(versions, priority=1)
    with pytest.raises(ValidationError, match="needs a group"):
        request("b", group_version="same")


async def test_the_watch_looks_by_itself(versions: Versions) -> None:
    yard = versions.yard  # noqa: F811
    await submit(versions, max_staleness=0)
    node = yard.node(init=1)
    await until(lambda: len(node.leases) == 1)
    running = asyncio.create_task(versions.watch.run())
    versions.current("v2")
    await until(lambda: yard.leases.get(RolloutKey("default", "a")) is None)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
