"""The service, its leases and its dispatcher over a real store: from a request to one terminal record."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.core.aio import running
from rollyard.core.errors import Conflict, Fenced, Invalid, NotFound
from rollyard.core.telemetry import ATTEMPTS_FAULTED
from rollyard.kinds.base import evolve
from rollyard.kinds.failure_table import POOL_DELETED
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutKey, RolloutRequest, Stage, Status
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.dispatch import Dispatcher
from rollyard.server.rollouts.grant_round import MAX_MOVES_WITHOUT_TURN, MAX_PER_GRANT
from rollyard.server.rollouts.move_hints import REPEAT_SECONDS, MoveHints
from rollyard.server.rollouts.new_rollouts import MAX_TASK_BYTES
from rollyard.server.rollouts.saved_turns import TurnsUpload
from rollyard.server.rollouts.step import SUSPECT_LOSSES
from rollyard.server.routing.endpoint_registry import STALE_SECONDS
from rollyard.server.routing.endpoint_state import SLOW_START_SECONDS
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.wire.base import Identity
from rollyard.wire.node import (
    CANNOT_MOVE_REASON,
    DRAIN_REASON,
    WALLTIME_REASON,
    Cancel,
    CapacityRequest,
    Deadline,
    Drain,
    Grant,
    Lease,
    LeaseRef,
    RechooseEndpoint,
    ResultHeader,
    ToNode,
    TurnsHeader,
)
from tests.support import make
from tests.support.manual_clock import ManualClock
from tests.support.reports import finish, run_stored
from tests.support.until import until

LEASE_SECONDS = 30.0
KEY = PoolKey("default", "swe")
FAULT = RolloutError(stage=Stage.RUN, reason="SandboxLost", message="it died")


def request(id: str | None = None, *, answer: str = "1", **more: Any) -> RolloutRequest:
    task = {"kind": "math", "problem": "?", "answer": answer}
    return RolloutRequest.model_validate({"id": id, "pool": "swe", "task": task, **more})


def identity(uid: str) -> Identity:
    return make.identity(uid, instance=f"i-{uid}", node=f"n-{uid}")


@dataclass
class Node:
    """A node agent's side of a connection: what it was sent, and what it holds."""

    agent: ConnectedNodeAgent
    sent: list[ToNode] = field(default_factory=list)

    @property
    def leases(self) -> list[Lease]:
        return [lease for message in self.sent if isinstance(message, Grant) for lease in message.leases]


class Yard:
    """A server's parts, of which the dispatcher runs, and one RolloutPool."""

    def __init__(self, parts: Parts, store: Store, clock: ManualClock) -> None:
        self.parts, self.store, self.clock = parts, store, clock
        self.node_agents, self.leases, self.endpoints = parts.node_agents, parts.leases, parts.endpoints
        self.rollouts, self.dispatcher = parts.rollouts, parts.dispatcher
        self.choice, self.sessions = parts.choice, parts.session_index
        self.pool = make.rollout_pool()

    async def declare(self, **spec: Any) -> None:
        """The pool, with these fields of its spec changed."""
        meta = self.pool.metadata
        update = {"spec": evolve(self.pool.spec, **spec)}
        if not meta.uid:
            made = await self.store.objects.create(evolve(self.pool, **update))
        else:
            free = evolve(meta, resource_version="")
            made = await self.store.objects.update(evolve(self.pool, **update, metadata=free), "spec")
        assert isinstance(made, RolloutPool)
        self.pool = made

    def node(self, uid: str = "u1", *, init: int = 0, eval: int = 0, kinds: tuple[str, ...] = ("math",)) -> Node:
        """A node agent connects and asks for work."""
        sent: list[ToNode] = []
        agent = ConnectedNodeAgent(identity(uid), KEY, sent.append, init, eval, frozenset(kinds), expel=lambda: None)
        self.node_agents.connect(agent)
        return Node(agent, sent)

    def wants(self, node: Node, init: int = 0, eval: int = 0) -> None:
        self.node_agents.request_capacity(
            node.agent, CapacityRequest(init=init, eval=eval, kinds=sorted(node.agent.kinds))
        )

    def engine(self, name: str) -> None:
        """A model server registers and says that it is healthy."""
        self.endpoints.register(PoolKey("default", "policy-pool"), identity(name), make.endpoint(name, version=""))
        assert self.endpoints.heartbeat(name, make.heartbeat(name, version="w1"))

    async def leased(self, node: Node, id: str) -> Lease:
        """Submit one rollout and see it leased to this node agent."""
        await self.rollouts.submit("default", [request(id)])
        self.wants(node, init=1)
        await until(lambda: any(lease.id == id for lease in node.leases))
        return next(lease for lease in node.leases if lease.id == id)

    async def expire(self) -> None:
        """Let every lease run out and be swept up."""
        self.clock.turn(LEASE_SECONDS + 1)
        for (namespace, id), lease in self.leases.expired():
            await self.rollouts.lose(LeaseRef(namespace=namespace, id=id, fence=lease.fence), "Expired")


@contextlib.asynccontextmanager
async def server(store: Store, folder: Path, clock: ManualClock) -> AsyncIterator[Parts]:
    """A server's parts, of which none runs."""
    parts = Parts(store, LocalDriver(folder / "slurm"), folder, clock, LEASE_SECONDS)
    try:
        yield parts
    finally:
        await parts.close()


@pytest_asyncio.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    async with server(store, tmp_path, clock) as parts, running(parts.dispatcher.run()):
        yard = Yard(parts, store, clock)
        await yard.declare()
        yield yard
    await store.close()


def header(lease: Lease | LeaseRef, status: str = "Completed", reward: float | None = 1.0, **more: Any) -> ResultHeader:
    ref = LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence)
    return ResultHeader(lease=ref, status=status, reward=reward, **({"sampled": 5} | more))


async def status_of(yard: Yard, id: str) -> tuple[Status, Stage]:
    record = await yard.rollouts.get("default", id)
    return record.status, record.stage


# requests


async def test_the_same_id_with_the_same_body_attaches(yard: Yard) -> None:
    [(made, new)] = await yard.rollouts.submit("default", [request("a")])
    [(again, attached)] = await yard.rollouts.submit("default", [request("a")])
    assert (new, attached, again) == (True, False, made)
    assert len(await yard.rollouts.find(RolloutFilter())) == 1
    with pytest.raises(Conflict, match="exists with another body"):
        await yard.rollouts.submit("default", [request("a", answer="2")])
    assert (await yard.rollouts.submit("other", [request("a", answer="2")]))[0][1], "ids belong to a namespace"


async def test_a_submission_is_taken_as_a_whole_or_not_at_all(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("b")])
    with pytest.raises(Conflict):
        await yard.rollouts.submit("default", [request("a"), request("b", answer="2"), request("c")])
    assert [r.id for r in await yard.rollouts.find(RolloutFilter())] == ["b"]
    with pytest.raises(Conflict):
        await yard.rollouts.submit("default", [request("x"), request("x", answer="2")])
    with pytest.raises(NotFound):
        await yard.rollouts.get("default", "x")


async def test_n_makes_a_group_that_attaches_as_a_whole(yard: Yard) -> None:
    made = [r for r, _ in await yard.rollouts.submit("default", [request("g", n=3)])]
    assert [(r.id, r.group, r.sample_index) for r in made] == [(f"g.{i}", "g", i) for i in range(3)]
    again = await yard.rollouts.submit("default", [request("g", n=3)])
    assert [new for _, new in again] == [False] * 3
    with pytest.raises(Conflict):
        await yard.rollouts.submit("default", [request("g", n=4)])


async def test_the_same_request_is_attached_to_and_another_one_is_refused(yard: Yard) -> None:
    for made in (request("a"), request("g", n=2)):
        await yard.rollouts.submit("default", [made])
        again = await yard.rollouts.submit("default", [made])
        assert [new for _, new in again] == [False] * made.n
    for other in (request("a", priority=1), request("a", answer="2"), request("g", n=3)):
        with pytest.raises(Conflict):
            await yard.rollouts.submit("default", [other])


async def test_a_task_that_is_too_large_is_refused(yard: Yard) -> None:
    with pytest.raises(Invalid, match="put large data into the image"):
        await yard.rollouts.submit("default", [request("a", answer="1" * MAX_TASK_BYTES)])


# the life of a lease


async def test_grant_run_and_finish(yard: Yard) -> None:
    node = yard.node()
    lease = await yard.leased(node, "a")
    assert (lease.stage, lease.fence, lease.task.fields["answer"]) == (Stage.INIT, 1, "1")
    assert node.agent.free_init == 0
    assert yard.leases.in_flight("default", "swe")[Stage.INIT] == 1
    await run_stored(yard.rollouts, lease, "u1", b"run")
    await run_stored(yard.rollouts, lease, "u1", b"run said twice")
    record = await yard.rollouts.get("default", "a")
    assert (record.stage, record.holder) == (Stage.EVAL, node.agent.holder)
    assert record.result is not None
    assert await yard.store.packs.read(record.result) == b"run"
    await finish(yard.rollouts, header(lease, turns=2, timings={"run": 1.5}), "u1", b"outcome")
    with pytest.raises(Fenced, match="drop its work"):
        await finish(yard.rollouts, header(lease, reward=0.0), "u1", b"said twice")
    record = await yard.rollouts.get("default", "a")
    assert (record.status, record.reward, record.cursor, record.holder) == (Status.COMPLETED, 1.0, 1, None)
    assert record.result is not None
    assert await yard.store.packs.read(record.result) == b"outcome"
    assert record.summary["turns"] == 2
    assert yard.leases.get(RolloutKey("default", "a")) is None


async def test_a_void_fence_and_a_stranger_are_refused(yard: Yard) -> None:
    first, second = yard.node("u1"), None
    old = await yard.leased(first, "a")
    await yard.expire()
    second = yard.node("u2", init=1)
    await until(lambda: bool(second.leases))
    new = second.leases[0]
    assert new.fence > old.fence
    for holder in ("u1", "u2"):
        with pytest.raises(Fenced):
            await run_stored(yard.rollouts, old, holder, b"late")
        with pytest.raises(Fenced):
            await finish(yard.rollouts, header(old, reward=0.0), holder, b"late")
    with pytest.raises(Fenced):
        await finish(yard.rollouts, header(new), "u1", b"not its own")
    with pytest.raises(Fenced):
        await finish(yard.rollouts, header(LeaseRef(namespace="default", id="none", fence=1)), "u1", b"")
    assert (await yard.rollouts.get("default", "a")).status is Status.RUNNING
    await finish(yard.rollouts, header(new), "u2", b"mine")
    assert (await yard.rollouts.get("default", "a")).reward == 1.0


async def test_an_expired_lease_goes_back_without_a_retry_counted(yard: Yard) -> None:
    node = yard.node()
    lease = await yard.leased(node, "a")
    yard.clock.turn(LEASE_SECONDS - 1)
    ref = LeaseRef(namespace="default", id="a", fence=lease.fence, stage=Stage.RUN)
    assert yard.leases.renew(node.agent.holder, [ref]) == []
    yard.clock.turn(LEASE_SECONDS - 1)
    assert yard.leases.expired() == [], "a heartbeat renews"
    await yard.expire()
    record = await yard.rollouts.get("default", "a")
    assert (record.status, record.faults, record.losses, record.attempt) == (Status.QUEUED, 0, 1, 2)
    assert yard.leases.renew(node.agent.holder, [ref]) == [ref], "it is told to stop"
    yard.wants(node, init=1)
    await until(lambda: len(node.leases) == 2)
    assert node.leases[1].fence == lease.fence + 1


async def test_what_expires_in_eval_is_scored_again_and_not_run_again(yard: Yard) -> None:
    lease = await yard.leased(yard.node(), "a")
    await run_stored(yard.rollouts, lease, "u1", b"run")
    await yard.expire()
    assert await status_of(yard, "a") == (Status.QUEUED, Stage.EVAL)
    other = yard.node("u2", eval=1)
    await until(lambda: bool(other.leases))
    assert (other.leases[0].stage, other.leases[0].endpoints) == (Stage.EVAL, {})


async def test_an_infrastructure_failure_is_retried_with_back_off_until_the_attempts_are_spent(yard: Yard) -> None:
    await yard.declare(max_attempts=2)
    node, counted = yard.node(), ATTEMPTS_FAULTED.labels("SandboxLost")
    lease, before = await yard.leased(node, "a"), counted._value.get()
    for attempt in (1, 2):
        await finish(yard.rollouts, header(lease, "InfraFailed", None, error=FAULT), "u1", b"fault")
        record = await yard.rollouts.get("default", "a")
        if attempt == 1:
            assert (record.status, record.faults) == (Status.QUEUED, 1)
            assert record.not_before > yard.clock.time()
            yard.clock.turn(60)
            yard.wants(node, init=1)
            await until(lambda: len(node.leases) == 2)
            lease = node.leases[1]
    assert (record.status, record.reward, record.faults) == (Status.INFRA_FAILED, None, 2)
    assert record.error is not None
    assert record.error.reason == "SandboxLost"
    assert counted._value.get() - before == 2


async def test_what_breaks_its_node_agents_code_is_a_fault_of_its_own_and_ends(yard: Yard) -> None:
    await yard.declare(max_attempts=2)
    node = yard.node()
    lease = await yard.leased(node, "a")
    with pytest.raises(Fenced):
        await yard.rollouts.fail(lease, "u2", "not its own")
    for attempt in (1, 2):
        await yard.rollouts.fail(lease, "u1", "KeyError: 'x'")
        if attempt == 1:
            yard.clock.turn(60)
            yard.wants(node, init=1)
            await until(lambda: len(node.leases) == 2)
            lease = node.leases[1]
    record = await yard.rollouts.get("default", "a")
    assert (record.status, record.faults, record.losses) == (Status.INFRA_FAILED, 2, 0)
    assert record.error is not None
    assert (record.error.reason, record.error.message) == ("NodeAgentError", "KeyError: 'x'")


async def lose_often(yard: Yard, node: Node, n: int) -> None:
    """Until the `n` rollouts that this node agent gets each time are suspects."""
    for _ in range(SUSPECT_LOSSES):
        yard.wants(node, init=n)
        await until(lambda: yard.leases.held_by(node.agent.holder) == n)
        await yard.expire()


async def test_what_may_end_its_node_agents_runs_alone_and_takes_no_neighbour_with_it(yard: Yard) -> None:
    one = yard.node("u1")
    await yard.rollouts.submit("default", [request("bad"), request("good")])
    await lose_often(yard, one, 2)
    await yard.rollouts.submit("default", [request("later")])
    two, three, four = yard.node("u2"), yard.node("u3"), yard.node("u4")
    for node in (one, two, three):
        yard.wants(node, init=9)
        await until(lambda node=node: yard.leases.held_by(node.agent.holder) == 1)
    assert [node.leases[-1].id for node in (one, two, three)] == ["bad", "good", "later"], "each suspect is alone"
    assert not four.leases
    await finish(yard.rollouts, header(two.leases[-1]), "u2", b"")
    await yard.rollouts.submit("default", [request(f"more-{i}") for i in range(17)])
    yard.wants(two, init=9)
    await until(lambda: yard.leases.held_by(two.agent.holder) == 9)
    assert yard.leases.held_by(one.agent.holder) == 1


async def test_what_may_end_its_node_agents_leaves_half_of_them_to_others(yard: Yard) -> None:
    one = yard.node("u1")
    await yard.rollouts.submit("default", [request(f"bad-{i}") for i in range(9)])
    await lose_often(yard, one, 9)
    await yard.rollouts.submit("default", [request(f"good-{i}") for i in range(4)])
    nodes = [one, *(yard.node(f"u{i}") for i in range(2, 5))]
    for node in nodes:
        yard.wants(node, init=2)
    await until(lambda: sum(yard.leases.held_by(n.agent.holder) for n in nodes) == 6)
    held = [{lease.id for lease in n.leases[-yard.leases.held_by(n.agent.holder) :]} for n in nodes]
    assert sorted(map(len, held)) == [1, 1, 2, 2]
    assert set.union(*(ids for ids in held if len(ids) == 2)) == {f"good-{i}" for i in range(4)}


async def test_a_busy_node_agent_is_kept_free_for_what_has_to_be_alone(yard: Yard) -> None:
    node = yard.node()
    await yard.rollouts.submit("default", [request("bad")])
    await lose_often(yard, node, 1)
    await yard.rollouts.submit("default", [request("old", priority=1)])
    yard.wants(node, init=1)
    await until(lambda: node.leases[-1].id == "old")
    await yard.rollouts.submit("default", [request("new")])
    yard.wants(node, init=5)
    await finish(yard.rollouts, header(node.leases[-1]), "u1", b"")
    yard.wants(node, init=5)
    await until(lambda: node.leases[-1].id == "bad")
    assert "new" not in {lease.id for lease in node.leases}, "else the suspect would wait for ever"


async def test_leases_in_the_store_get_a_full_period_after_a_restart(yard: Yard, tmp_path: Path) -> None:
    node = yard.node()
    lease = await yard.leased(node, "a")
    yard.clock.turn(1000)
    async with server(yard.store, tmp_path, yard.clock) as reborn:
        await reborn.rollouts.recover()
        leases = reborn.leases
        assert leases.expired() == []
        assert leases.renew(node.agent.holder, [LeaseRef(namespace="default", id="a", fence=lease.fence)]) == []
        yard.clock.turn(LEASE_SECONDS)
        assert [key for key, _ in leases.expired()] == [("default", "a")]


@pytest.mark.parametrize("outside", [False, True])
async def test_the_end_of_an_allocation_takes_its_leases_back(yard: Yard, outside: bool) -> None:
    await yard.leased(yard.node("u1"), "a")
    kept = await yard.leased(yard.node("u2"), "b")
    yard.node_agents.disconnect(yard.node_agents.all()[0])
    await yard.rollouts.lose_allocation("u1", blameless=outside)
    record = await yard.rollouts.get("default", "a")
    assert (record.status, record.losses) == (Status.QUEUED, not outside)
    assert (await status_of(yard, kept.id))[0] is Status.RUNNING


async def test_a_lease_that_never_arrived_is_no_loss_of_the_rollout(yard: Yard) -> None:
    node = yard.node("u1")
    held, never = await yard.leased(node, "a"), await yard.leased(node, "b")
    assert yard.leases.renew(node.agent.holder, [held]) == []
    await yard.rollouts.lose_missing(node.agent.holder, [])
    found = [await yard.rollouts.get("default", lease.id) for lease in (held, never)]
    assert [(record.status, record.losses) for record in found] == [(Status.QUEUED, 1), (Status.QUEUED, 0)]
    assert ["Expired" in found[0].history, "NotReceived" in found[1].history] == [True, True]


# cancelling


async def test_what_waits_is_cancelled_at_once(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("a")])
    ended = await yard.rollouts.cancel("default", "a")
    assert (ended.status, ended.reward, ended.cursor) == (Status.CANCELLED, None, 1)
    assert await yard.rollouts.cancel("default", "a") == ended, "again is not an error"
    with pytest.raises(NotFound):
        await yard.rollouts.cancel("default", "none")
    assert yard.node(init=1).leases == []


async def test_what_runs_is_cancelled_and_its_holder_told(yard: Yard) -> None:
    node = yard.node()
    lease = await yard.leased(node, "a")
    assert (await yard.rollouts.cancel("default", "a")).status is Status.CANCELLED
    told = [m.lease for m in node.sent if isinstance(m, Cancel)]
    assert [(ref.id, ref.fence) for ref in told] == [("a", lease.fence)]
    assert yard.leases.get(RolloutKey("default", "a")) is None
    with contextlib.suppress(Fenced):
        await finish(yard.rollouts, header(lease), "u1", b"too late")
    record = await yard.rollouts.get("default", "a")
    assert (record.status, record.reward) == (Status.CANCELLED, None)


async def test_a_whole_queue_is_cancelled(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("g", n=700), request("x", pool="other")])
    assert await yard.rollouts.cancel_queued(KEY, POOL_DELETED, "the pool is gone") == 700
    left = await yard.rollouts.find(RolloutFilter(status=(Status.QUEUED,)))
    assert [r.id for r in left] == ["x"]


# waiting


async def test_wait_answers_as_soon_as_it_has_ended(yard: Yard) -> None:
    lease = await yard.leased(yard.node(), "a")
    waiting = [asyncio.create_task(yard.rollouts.ends.wait("default", "a", 600)) for _ in range(3)]
    await asyncio.sleep(0)
    await finish(yard.rollouts, header(lease), "u1", b"")
    async with asyncio.timeout(60):
        assert {(await w).status for w in waiting} == {Status.COMPLETED}
        assert (await yard.rollouts.ends.wait("default", "a", 600)).status is Status.COMPLETED, (
            "what has ended does not wait"
        )
    with pytest.raises(NotFound):
        await yard.rollouts.ends.wait("default", "none", 600)


async def test_wait_gives_up_when_the_time_is_up(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("a")])
    for seconds in (0.0, 0.01):
        assert (await yard.rollouts.ends.wait("default", "a", seconds)).status is Status.QUEUED


async def take(stream: AsyncIterator[Sequence[RolloutRecord]], count: int) -> list[RolloutRecord]:
    found: list[RolloutRecord] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await anext(stream)
    return found[:count]


async def test_a_stream_resumes_at_its_cursor(yard: Yard) -> None:
    made = [r for r, _ in await yard.rollouts.submit("default", [request("g", n=4), request("x")])]
    for record in made[:3]:
        await yard.rollouts.cancel("default", record.id)
    first = await take(yard.rollouts.ends.stream(0, "default", None, None, 60), 2)
    assert [r.id for r in first] == ["g.0", "g.1"]
    assert first[-1].cursor is not None
    resumed = yard.rollouts.ends.stream(first[-1].cursor, "default", None, None, 60)
    assert [r.id for r in await take(resumed, 1)] == ["g.2"]
    following = asyncio.create_task(take(resumed, 2))
    for id in ("x", "g.3"):
        await yard.rollouts.cancel("default", id)
    assert [r.id for r in await following] == ["x", "g.3"]
    only = yard.rollouts.ends.stream(0, "default", "g", "swe", 60)
    assert [r.id for r in await take(only, 4)] == ["g.0", "g.1", "g.2", "g.3"]


async def test_a_stream_says_when_nothing_comes(yard: Yard) -> None:
    stream = yard.rollouts.ends.stream(0, "default", None, None, 0.01)
    assert await anext(stream) == []
    await yard.rollouts.submit("default", [request("a")])
    await yard.rollouts.cancel("default", "a")
    assert [r.id for r in await take(stream, 1)] == ["a"]


async def test_a_stream_says_so_too_while_others_end_all_the_time(yard: Yard) -> None:
    async def busy() -> None:
        for n in itertools.count():
            await yard.rollouts.submit("default", [request(f"a{n}")])
            await yard.rollouts.cancel("default", f"a{n}")

    async with running(busy()):
        for scope in (("default", "others", None), ("default", None, "others")):
            assert await asyncio.wait_for(anext(yard.rollouts.ends.stream(0, *scope, 0.2)), 60) == []


# handing out


async def test_the_emptiest_node_agent_gets_the_next_one(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("g", n=8)])
    rooms = {"u1": 6, "u2": 4, "u3": 2}
    identities = [yard.node(uid, init=n) for uid, n in rooms.items()]
    await until(lambda: sum(len(n.leases) for n in identities) == 8)
    left = [n.agent.free_init for n in identities]
    assert max(left) - min(left) <= 1, left


async def test_endpoints_are_chosen_by_their_live_sessions(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    await yard.rollouts.submit("default", [request("g", n=10)])
    node = yard.node(init=7)
    await asyncio.sleep(0.02)
    assert node.leases == [], "nothing goes out while no endpoint is ready"
    yard.engine("e1")
    await until(lambda: len(node.leases) == 7)
    assert yard.sessions.counts() == {"e1": 7}
    yard.engine("e2")
    yard.clock.turn(SLOW_START_SECONDS)
    yard.wants(node, init=3)
    await until(lambda: len(node.leases) == 10)
    assert yard.sessions.counts() == {"e1": 7, "e2": 3}, "the one with fewer gets them all"
    assert node.leases[0].endpoints["policy"].weights_version == "w1"
    first = next(lease for lease in node.leases if lease.endpoints["policy"].id == "e1")
    await yard.rollouts.move_endpoint(first, "u1", "policy", "e2")
    assert yard.sessions.counts() == {"e1": 6, "e2": 4}
    await run_stored(yard.rollouts, first, "u1", b"run")
    assert yard.sessions.counts() == {"e1": 6, "e2": 3}, "what is being scored has no session"


async def test_a_check_needs_no_model_server_and_no_trainer_gets_it(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    await yard.rollouts.submit("default", [request("train", n=300)])
    check = {"mode": "check", "agent": {"type": "nothing"}}
    await yard.rollouts.submit("default", [request(f"check-{number}", **check) for number in range(3)])
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    assert [(lease.id, lease.endpoints) for lease in node.leases] == [("check-0", {}), ("check-1", {})]
    needed, running = await yard.rollouts.model_demand(KEY, None, "policy")
    assert (needed[Stage.INIT], running[Stage.INIT]) == (300, 0), "checks start no engines"
    needed, running = await yard.rollouts.model_demand(KEY, None, "judge")
    assert (needed[Stage.INIT], running[Stage.INIT]) == (301, 2), "checks may need a judge"
    await run_stored(yard.rollouts, node.leases[0], "u1", b"run")
    await finish(yard.rollouts, header(node.leases[0], reward=0.0, sampled=0), "u1", None)
    ended = await yard.rollouts.get("default", "check-0")
    assert (ended.status, ended.reward, ended.endpoints) == (Status.COMPLETED, 0.0, {})
    assert (await yard.rollouts.model_demand(KEY, None, "policy"))[0][Stage.INIT] == 300
    await yard.rollouts.cancel("default", "train.0")
    stream = yard.rollouts.ends.stream(0, "default", None, None, 60)
    assert [record.id for record in await take(stream, 1)] == ["train.0"]


async def test_an_artifact_is_scored_again_in_a_rollout_of_its_own(yard: Yard) -> None:
    node = yard.node()
    lease = await yard.leased(node, "a")
    with pytest.raises(Invalid, match="'a' has not ended"):
        await yard.rollouts.submit("default", [request("again", mode="check", regrade_of="a")])
    await run_stored(yard.rollouts, lease, "u1", b"run")
    await finish(yard.rollouts, header(lease), "u1", None)
    again = request("again", answer="2", mode="check", regrade_of="a")
    assert [new for _, new in await yard.rollouts.submit("default", [again])] == [True]
    assert [new for _, new in await yard.rollouts.submit("default", [again])] == [False]
    yard.wants(node, eval=1)
    await until(lambda: len(node.leases) == 2)
    assert (node.leases[1].id, node.leases[1].stage, node.leases[1].task.fields["answer"]) == ("again", Stage.EVAL, "2")
    await finish(yard.rollouts, header(node.leases[1], reward=0.0), "u1", None)
    old, new = [await yard.rollouts.get("default", id) for id in ("a", "again")]
    assert (old.reward, new.reward, new.result, new.artifact) == (1.0, 0.0, old.result, old.artifact)
    await yard.rollouts.submit("default", [request("never")])
    await yard.rollouts.cancel("default", "never")
    for id, why in (("never", "was never stored"), ("nonesuch", "is unknown")):
        with pytest.raises(Invalid, match=why):
            await yard.rollouts.submit("default", [request(None, mode="check", regrade_of=id)])


async def test_counts_of_the_leases_are_those_of_the_store_whatever_happens(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool", "judge": "policy-pool"})
    for name in ("e1", "e2", "e3"):
        yard.engine(name)
    await yard.rollouts.submit("default", [request("g", n=12)])
    node = yard.node(init=12)
    await until(lambda: len(node.leases) == 12)
    moved, run, lost, over, cancelled, *_ = node.leases
    await yard.rollouts.move_endpoint(moved, "u1", "judge", "e3")
    await run_stored(yard.rollouts, run, "u1", b"run")
    await yard.rollouts.lose(lost, "Preempted", handed_back=True)
    await finish(yard.rollouts, header(over), "u1", b"")
    await yard.rollouts.cancel("default", cancelled.id)
    sampling = [r for r in await yard.store.rollouts.transact(lambda tx: tx.held()) if r.stage is not Stage.EVAL]
    stored = Counter(endpoint for record in sampling for endpoint in set(record.endpoints.values()))
    assert yard.sessions.counts() == dict(stored) != {}
    await yard.expire()
    assert yard.sessions.counts() == {}
    await yard.rollouts.recover()
    assert yard.sessions.counts() == {}


async def test_who_is_on_an_endpoint_that_drains_is_told_to_ask_and_once(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    yard.engine("e1")
    await yard.rollouts.submit("default", [request("g", n=4)])
    node = yard.node(init=4)
    await until(lambda: len(node.leases) == 4)
    rebalancer = yard.parts.rebalancer
    rebalancer.rebalance()
    yard.endpoints.drain("e1")
    rebalancer.rebalance()
    assert not [m for m in node.sent if isinstance(m, RechooseEndpoint)], "there is nowhere to go"
    yard.engine("e2")
    for _ in range(3):
        rebalancer.rebalance()
    told = [m for m in node.sent if isinstance(m, RechooseEndpoint)]
    assert {(m.lease.id, m.lease.fence, m.role) for m in told} == {(le.id, le.fence, "policy") for le in node.leases}
    assert len(told) == 4
    assert yard.sessions.count("e1") == 4, "it is counted when it has moved, and not before"


async def test_a_rollout_that_left_the_endpoint_meanwhile_gets_no_hint(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    yard.engine("e1")
    await yard.rollouts.submit("default", [request("r")])
    node = yard.node(init=1)
    await until(lambda: len(node.leases) == 1)
    hints, key = MoveHints(yard.clock, yard.parts.node_agents, yard.leases), RolloutKey("default", "r")
    assert not hints.send(key, "e2", urgent=False)
    assert hints.send(key, "e1", urgent=False), "the refused hint does not count as the last one"
    assert [m.role for m in node.sent if isinstance(m, RechooseEndpoint)] == ["policy"]


async def test_sessions_of_an_endpoint_that_fell_silent_are_told_to_leave_at_once(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    yard.engine("e1")
    await yard.rollouts.submit("default", [request("g", n=2)])
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    rebalancer = yard.parts.rebalancer

    def told() -> int:
        rebalancer.rebalance()
        return len([m for m in node.sent if isinstance(m, RechooseEndpoint) and m.now])

    assert told() == 0
    yard.clock.turn(STALE_SECONDS + 1)
    yard.endpoints.expire()
    assert rebalancer.stranded() == {"e1": False}
    assert told() == 0, "there is nowhere to go"
    yard.engine("e2")
    assert [told(), told()] == [2, 2]
    yard.clock.turn(REPEAT_SECONDS)
    assert told() == 4, "until it has moved: one that was about to sample did not hear it"


async def test_a_rollout_that_was_handed_back_goes_where_its_prefix_is(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    for name in ("e1", "e2", "e3", "e4"):
        yard.engine(name)
    yard.clock.turn(SLOW_START_SECONDS)
    node = yard.node()
    had = [await yard.leased(node, f"r{i}") for i in range(4)]
    for lease in had:
        await yard.rollouts.lose(lease, "Preempted", handed_back=True)
    other = yard.node("u2", init=4)
    await until(lambda: len(other.leases) == 4)
    before = {lease.id: lease.endpoints["policy"].id for lease in had}
    assert {lease.id: lease.endpoints["policy"].id for lease in other.leases} == before


async def test_a_history_says_why_a_lease_went_there_and_when_its_holder_began_to_run(yard: Yard) -> None:
    await yard.declare(inference={"policy": "policy-pool"})
    for name in ("e1", "e2"):
        yard.engine(name)
    yard.clock.turn(SLOW_START_SECONDS)
    small = yard.node("e2", init=1)  # on the node of endpoint e2
    await yard.rollouts.submit("default", [request("r")])
    await until(lambda: len(small.leases) == 1)
    yard.clock.turn(2.0)
    began, ref = yard.clock.time(), small.leases[0]
    assert not yard.leases.renew(small.agent.holder, [evolve(ref, stage=Stage.RUN)])
    assert (await status_of(yard, "r"))[1] is Stage.INIT, "a heartbeat is not stored"
    leased, run = (await yard.rollouts.history("default", "r")).entries[1:]
    assert leased.endpoints is not None
    assert (leased.reason, leased.free, leased.able) == ("OnlyOne", 1, 1)
    assert (leased.endpoints["policy"].id, leased.endpoints["policy"].reason) == ("e2", "SameNode")
    assert (leased.node, leased.allocation) == ("n-e2", small.agent.identity.allocation)
    assert (run.event, run.stage, run.at) == ("StageBegun", Stage.RUN, round(began, 3))

    yard.clock.turn(1.0)
    await yard.rollouts.move_endpoint(ref, "e2", "policy", "e1", "EndpointFailed", "HTTP 502")
    assert (await status_of(yard, "r"))[1] is Stage.RUN, "now it is stored, and once"
    assert yard.leases.in_flight("default", "swe")[Stage.RUN] == 1
    small.agent.draining = True
    await yard.rollouts.lose(ref, "NodeAgentStopped", handed_back=True)
    for uid, room in (("u3", 3), ("u4", 4)):
        yard.node(uid, init=room)
    await until(lambda: yard.leases.held_by("u4/i-u4") == 1)
    told = (await yard.rollouts.history("default", "r")).entries
    assert [e.event for e in told] == ["Queued", "Leased", "StageBegun", "EndpointMoved", "HandedBack", "Leased"]
    assert told[-1].endpoints is not None
    assert (told[-1].reason, told[-1].free, told[-1].able, told[-1].stage) == ("MostRoom", 4, 2, Stage.INIT)
    assert (told[-1].endpoints["policy"].id, told[-1].endpoints["policy"].reason) == ("e1", "WarmPrefix")


async def test_work_goes_to_those_that_can_do_it_and_are_not_draining(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("g", n=2)])
    unable, draining = yard.node("u1", init=5, kinds=("code",)), yard.node("u2")
    yard.node_agents.set_walltime_end("u2", yard.clock.time() + 60)
    yard.node_agents.drain("u2", yard.clock.time() + 30)
    yard.node_agents.drain("u2", yard.clock.time() + 30)
    told = [m for m in draining.sent if isinstance(m, Deadline)]
    assert [(round(m.seconds), m.reason) for m in told] == [(60, WALLTIME_REASON), (30, DRAIN_REASON)]
    assert [type(m) for m in draining.sent if m not in told] == [Drain]
    yard.wants(draining, init=5)
    able = yard.node("u3", init=5)
    await until(lambda: len(able.leases) == 2)
    assert (unable.leases, draining.leases) == ([], [])
    back = yard.node("u2", init=5)
    assert [type(m) for m in back.sent] == [Drain, Deadline], "a reconnect changes nothing about that"


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.EVAL])
async def test_what_nobody_here_can_do_holds_up_nothing_behind_it(yard: Yard, stage: Stage) -> None:
    for id, kind in (("code", "code"), ("math", "math")):
        task = {"kind": kind, "problem": "?", "answer": "1"}
        await yard.rollouts.submit("default", [request(id, n=MAX_PER_GRANT + 1, task=task)])
    if stage is Stage.EVAL:
        await run_all(yard)
    math = yard.node("u1", kinds=("math",))
    yard.wants(math, **{stage.value.lower(): 1})
    await until(lambda: bool(math.leases))
    assert (math.leases[0].id, math.leases[0].stage) == ("math.0", stage)


async def run_all(yard: Yard) -> None:
    """Store a run for each queued rollout, so that it is queued for EVAL."""

    def change(tx: Transaction) -> None:
        for record in tx.queued([KEY], [Stage.INIT], float("inf"), 10_000):
            tx.put(replace(record, stage=Stage.EVAL))

    await yard.store.rollouts.transact(change)


async def test_a_full_node_agent_holds_up_no_other(yard: Yard) -> None:
    code = {"kind": "code", "problem": "?", "answer": "1"}
    await yard.rollouts.submit("default", [request("code", n=MAX_PER_GRANT + 1, task=code), request("math")])
    yard.node_agents.connect(
        ConnectedNodeAgent(identity("u1"), KEY, lambda message: None, 1, 0, frozenset({"code"}), expel=lambda: None)
    )
    math = yard.node("u2", init=1)
    await until(lambda: bool(math.leases))


async def test_what_outlasts_a_walltime_holds_up_nothing_that_does_not(yard: Yard) -> None:
    node = yard.node()
    yard.node_agents.set_walltime_end("u1", yard.clock.time() + 60)
    tight = {"init_seconds": 10, "run_seconds": 20, "eval_seconds": 10}
    await yard.rollouts.submit("default", [request("long", n=MAX_PER_GRANT + 1), request("short", budgets=tight)])
    yard.wants(node, init=1)
    await until(lambda: [lease.id for lease in node.leases] == ["short"])


async def test_work_goes_only_where_the_walltime_covers_its_budgets(yard: Yard) -> None:
    whole = yard.pool.spec.stages.budget_seconds
    short, long = yard.node("u1", init=4), yard.node("u2", init=1)
    now = yard.clock.time()
    yard.node_agents.set_walltime_end("u1", now + whole - 1)
    yard.node_agents.set_walltime_end("u2", now + whole + 60)
    tight = {"init_seconds": 10, "run_seconds": 20, "eval_seconds": 10}
    await yard.rollouts.submit("default", [request("a"), request("b"), request("c", budgets=tight)])
    await until(lambda: len(long.leases) == 1 and len(short.leases) == 1)
    assert [lease.id for lease in short.leases] == ["c"], "its own budgets are tighter than the pool's"
    yard.node_agents.set_walltime_end("u2", now + whole + 600)
    yard.wants(long, init=1)
    await until(lambda: len(long.leases) == 2)
    assert {lease.id for lease in long.leases} == {"a", "b"}


async def test_a_rollout_that_can_move_begins_where_the_walltime_covers_a_turn(yard: Yard) -> None:
    node, stages = yard.node("u1"), yard.pool.spec.stages
    node.agent.resumable_kinds = frozenset({"math"})
    short = stages.turn_seconds(stages.init.timeout_seconds, 30) + 10
    yard.node_agents.set_walltime_end("u1", yard.clock.time() + short)
    await yard.rollouts.submit("default", [request("never", agent={"resume": "never"}), request("auto")])
    await yard.rollouts.submit("default", [request("long-calls", agent={"tool_timeout_seconds": 60})])
    yard.wants(node, init=4)
    await until(lambda: bool(node.leases))
    for moved in range(MAX_MOVES_WITHOUT_TURN):
        assert [lease.id for lease in node.leases] == ["auto"] * (moved + 1)
        ref = LeaseRef(namespace="default", id="auto", fence=node.leases[-1].fence)
        await yard.rollouts.lose(ref, WALLTIME_REASON, handed_back=True)
        if moved < MAX_MOVES_WITHOUT_TURN - 1:
            yard.wants(node, init=4)
            await until(lambda n=moved: len(node.leases) == n + 2)
    await yard.rollouts.submit("default", [request("other")])
    yard.wants(node, init=4)
    await until(lambda: node.leases[-1].id == "other")
    assert len(node.leases) == MAX_MOVES_WITHOUT_TURN + 1, "no turn fits, so it waits for all its budgets"
    entries = (await yard.rollouts.history("default", "auto")).entries
    assert "as its walltime ended; no turn kept, so it begins again" in str(entries[-1].message)


async def test_a_rollout_whose_environment_cannot_be_saved_waits_for_all_its_budgets(yard: Yard) -> None:
    """The node agent finds out when it has made the environment."""
    node, stages = yard.node("u1"), yard.pool.spec.stages
    node.agent.resumable_kinds = frozenset({"math"})
    yard.node_agents.set_walltime_end(
        "u1", yard.clock.time() + stages.turn_seconds(stages.init.timeout_seconds, 30) + 10
    )
    await yard.rollouts.submit("default", [request("a")])
    yard.wants(node, init=1)
    await until(lambda: len(node.leases) == 1)
    ref = LeaseRef(namespace="default", id="a", fence=node.leases[-1].fence)
    await yard.rollouts.lose(ref, CANNOT_MOVE_REASON, handed_back=True)
    await yard.rollouts.submit("default", [request("b", agent={"type": "command", "command": "true"})])
    yard.wants(node, init=2)
    await until(lambda: len(node.leases) == 2)
    assert [lease.id for lease in node.leases] == ["a", "b"], "a command can move"
    (entry,) = [one for one in (await yard.rollouts.history("default", "a")).entries if one.event == "HandedBack"]
    assert "its environment cannot be saved, and the walltime was too short for all of RUN" in str(entry.message)
    yard.node_agents.set_walltime_end("u1", yard.clock.time() + stages.budget_seconds + 60)
    yard.wants(node, init=1)
    await until(lambda: [lease.id for lease in node.leases] == ["a", "b", "a"])


async def test_a_rollout_with_saved_turns_goes_on_elsewhere_and_needs_walltime_for_a_turn(yard: Yard) -> None:
    first = yard.node("u1")
    lease = await yard.leased(first, "a")
    assert (lease.resume, lease.saved_turns, lease.lost) == (True, 0, "")
    ref = LeaseRef(namespace="default", id="a", fence=lease.fence, stage=Stage.RUN)
    upload = TurnsUpload(TurnsHeader(lease=ref, kept=0), [b"one", b"two"])
    assert await yard.rollouts.store_turns([upload], "u1") == [None]
    (refused,) = await yard.rollouts.store_turns([upload], "u2")
    assert isinstance(refused, Fenced)
    await yard.expire()
    assert await status_of(yard, "a") == (Status.QUEUED, Stage.INIT)
    second, init = yard.node("u2"), yard.pool.spec.stages.init.timeout_seconds
    yard.node_agents.set_walltime_end("u2", yard.clock.time() + init + 100)
    await yard.rollouts.submit("default", [request("b")])
    yard.wants(second, init=2)
    await until(lambda: bool(second.leases))
    (again,) = second.leases
    assert (again.id, again.attempt, again.saved_turns, again.lost) == ("a", 1, 2, "Expired"), "b needs more walltime"
    (stale,) = await yard.rollouts.store_turns([upload], "u1")
    assert isinstance(stale, Fenced)
    record = await yard.rollouts.get("default", "a")
    assert (await yard.store.rollouts.saved_turns(record))[1] == [b"one", b"two"]
    await run_stored(yard.rollouts, LeaseRef(namespace="default", id="a", fence=again.fence), "u2", b"tokens")
    record = await yard.rollouts.get("default", "a")
    assert (record.saved_turns, (await yard.store.rollouts.saved_turns(record))[1]) == (0, [])


@pytest.mark.parametrize("where", ["pool", "request"])
async def test_resume_is_switched_off_by_the_pool_or_the_request(yard: Yard, where: str) -> None:
    await yard.declare(resume="never" if where == "pool" else "auto")
    node = yard.node(init=1)
    agent = {"resume": "never"} if where == "request" else {}
    await yard.rollouts.submit("default", [request("a", agent=agent)])
    await until(lambda: [lease.resume for lease in node.leases] == [False])


async def test_a_suspended_pool_hands_nothing_out(yard: Yard) -> None:
    await yard.declare(suspend=True)
    await yard.rollouts.submit("default", [request("a")])
    node = yard.node(init=1)
    await asyncio.sleep(0.02)
    assert node.leases == []
    await yard.declare(suspend=False)
    yard.dispatcher.wake(KEY)
    await until(lambda: bool(node.leases))


async def test_higher_priority_goes_first(yard: Yard) -> None:
    await yard.rollouts.submit("default", [request("low"), request("high", priority=5), request("also")])
    node = yard.node(init=2)
    await until(lambda: len(node.leases) == 2)
    assert [lease.id for lease in node.leases] == ["high", "low"]


async def test_what_is_stored_is_the_request_that_was_sent(yard: Yard) -> None:
    [(made, _)] = await yard.rollouts.submit("default", [request("a", sampling={"seed": 3}, mode="eval")])
    body = json.loads(made.request)
    assert (body["sampling"]["seed"], body["mode"], body["n"]) == (3, "eval", 1)


async def test_a_missed_wake_is_made_up_for_while_other_pools_wake_all_the_time(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.server.rollouts.dispatch.RETRY_SECONDS", 0.05)
    await yard.rollouts.submit("default", [request("a")])
    node = yard.node()
    await asyncio.sleep(0.02)
    node.agent.free_init = 1

    def given() -> bool:
        yard.dispatcher.wake(PoolKey("default", "other"))
        return bool(node.leases)

    await until(given)


async def test_the_dispatcher_can_be_ended_at_the_moment_it_is_woken(yard: Yard) -> None:
    dispatcher = Dispatcher(
        yard.store.rollouts,
        yard.clock,
        yard.node_agents,
        yard.leases,
        yard.endpoints,
        yard.parts.choice,
        lambda key: never(),
    )
    running = asyncio.create_task(dispatcher.run())
    await asyncio.sleep(0)
    dispatcher.wake(KEY)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(running), 60)


async def never() -> RolloutPool:
    raise NotFound("no pool is asked for")
