"""Grants queued rollouts to node agents, one pool at a time. Among the node agents that can take a rollout, the one
with the greatest free capacity gets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from rollyard.core.aio import Waker
from rollyard.core.clock import Clock
from rollyard.core.errors import RollyardError
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.rollout_pool import SPARE_SECONDS, RolloutPool, Stages
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.history import LeaseChoice
from rollyard.server.rollouts.image_hold import tried
from rollyard.server.rollouts.leases import Leases
from rollyard.server.rollouts.step import SUSPECT_LOSSES, Granted, is_suspect, step
from rollyard.server.routing.endpoint_choice import Burst, EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.staleness import POLICY_ROLE, ServedVersions, allowed_versions
from rollyard.server.store.base import GroupVersions, RolloutRecord, Transaction
from rollyard.server.store.rollout_store import RolloutStore
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.node import Grant, Lease

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
MAX_PER_GRANT = 256
MAX_QUEUE_PAGES = 4
"""Greatest number of queue pages that one round reads for a stage. The first pages may have only unsuitable rollouts."""
STAGES_TO_COME = {Stage.INIT: ("init", "run", "eval"), Stage.EVAL: ("eval",)}


def exclusive_limit(node_agents: int) -> int:
    """Return how many of a pool's node agents may be reserved for rollouts that must run alone. At least half of the
    node agents stay for other rollouts, unless the pool has only one."""
    return max(1, node_agents // 2)


def served_versions(endpoints: EndpointRegistry, pool: RolloutPool) -> ServedVersions:
    """Return the weights versions of the endpoints that this RolloutPool uses for the policy role."""
    name = pool.spec.inference.get(POLICY_ROLE)
    return ServedVersions() if name is None else endpoints.served_versions(PoolKey(pool.metadata.namespace, name))


@dataclass(frozen=True, slots=True)
class _GrantedLease:
    node_agent: ConnectedNodeAgent
    record: RolloutRecord
    endpoints: dict[str, Endpoint]


@dataclass(slots=True)
class _Images:
    """Images in one round."""

    default: str
    """Image of the rollouts that name none."""
    due: set[str]
    """Held images that one rollout may try again."""
    trying: set[str] = field(default_factory=set)
    """Images in `due` for which this round has found a rollout."""

    def of(self, record: RolloutRecord) -> str:
        return record.image or self.default

    def may_begin(self, record: RolloutRecord) -> bool:
        """Whether no other rollout tries the record's image."""
        return self.of(record) not in self.trying

    def begin(self, record: RolloutRecord) -> None:
        if self.of(record) in self.due:
            self.trying.add(self.of(record))


@dataclass(slots=True)
class _NodeAgentCapacity:
    """A copy of a node agent's free capacity, made at the start of a round. The thread of the store's writer changes
    only the copy."""

    node_agent: ConnectedNodeAgent
    free: dict[Stage, int]
    """Free capacity, by the stage with which a lease begins."""
    held: int
    """Number of leases that the node agent has, including those of this round."""
    reserved: bool = False
    """True: the node agent gets no more leases in this round, because a rollout that must run alone has got this
    node agent or waits for it."""

    def can_take(self, record: RolloutRecord, stages: Stages, now: float) -> bool:
        """Whether `has_capacity` is true and, if the rollout must run alone, the node agent has no lease."""
        return not (is_suspect(record) and self.held) and self.has_capacity(record, stages, now)

    def has_capacity(self, record: RolloutRecord, stages: Stages, now: float) -> bool:
        """Whether the node agent is not reserved, and has free capacity, a handler for this task kind, and enough
        walltime for the remaining stages."""
        if self.reserved or self.free[record.stage] <= 0 or record.task_kind not in self.node_agent.kinds:
            return False
        if self.node_agent.walltime_ends is None:
            return True
        left = self.node_agent.walltime_ends - now - SPARE_SECONDS
        pools = {word: float(getattr(stages, word).timeout_seconds) for word in STAGES_TO_COME[record.stage]}
        if left >= sum(pools.values()):
            return True
        return left >= needed_seconds(record, stages)  # slow: it parses the request


def needed_seconds(record: RolloutRecord, stages: Stages) -> float:
    """Return the seconds of the remaining stages' budgets. A rollout's own budget counts if it is less than the pool's."""
    own = RolloutRequest.model_validate_json(record.request).budgets
    pools = {word: float(getattr(stages, word).timeout_seconds) for word in STAGES_TO_COME[record.stage]}
    return sum(min(limit, getattr(own, f"{word}_seconds") or limit) for word, limit in pools.items())


class Dispatcher:
    """Grants leases: one round for a pool whenever work, capacity, or an endpoint appears."""

    def __init__(
        self,
        store: RolloutStore,
        clock: Clock,
        node_agents: ConnectedNodeAgents,
        leases: Leases,
        endpoints: EndpointRegistry,
        choice: EndpointChoice,
        pool: Callable[[PoolKey], Awaitable[RolloutPool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._node_agents = node_agents
        self._leases = leases
        self._endpoints = endpoints
        self._choice = choice
        self._pool = pool
        self._due: set[PoolKey] = set()
        self._waker = Waker()

    def wake(self, pool: PoolKey, at: float = 0.0) -> None:
        """Start a round for this pool now, or at `at` (Unix seconds) if that is later."""
        delay = at - self._clock.time()
        if delay > 0:
            asyncio.get_running_loop().call_later(delay + 0.001, self.wake, pool)
            return
        self._due.add(pool)
        self._waker.wake()

    async def run(self) -> None:
        """Dispatch for ever."""
        loop = asyncio.get_running_loop()
        whole_round = loop.time()
        while True:
            await self._waker.pause(whole_round - loop.time())
            due, self._due = self._due, set()
            if loop.time() >= whole_round:  # a safety net: a missed wake delays a pool by RETRY_SECONDS at most
                due |= {a.pool for a in self._node_agents.all()}
                whole_round = loop.time() + RETRY_SECONDS
            for pool in due:
                try:
                    await self._dispatch(pool)
                except RollyardError as error:
                    log.warning("no rollouts handed out in pool %s/%s: %s", *pool, error)

    async def _dispatch(self, key: PoolKey) -> None:
        taking = [a for a in self._node_agents.of_pool(key) if not a.draining]
        node_agents = [a for a in taking if a.free_init > 0 or a.free_eval > 0]
        if not node_agents:
            return
        pool = await self._pool(key)
        if pool.metadata.deletion_timestamp is not None or pool.spec.suspend:
            return
        rooms = [
            _NodeAgentCapacity(a, {Stage.INIT: a.free_init, Stage.EVAL: a.free_eval}, self._leases.held_by(a.holder))
            for a in node_agents
            if not self._leases.has_exclusive(a.holder)
        ]
        alone = exclusive_limit(len(taking)) - sum(self._leases.has_exclusive(a.holder) for a in taking)
        served = served_versions(self._endpoints, pool)
        bursts = {name: self._choice.burst(key._replace(name=name)) for name in pool.spec.inference.values()}
        granted = await self._store.transact(lambda tx: self._grant(tx, key, pool, rooms, bursts, served, alone))
        for agent in node_agents:
            own = [g for g in granted if g.node_agent is agent]
            agent.free_eval -= sum(g.record.stage is Stage.EVAL for g in own)
            agent.free_init -= sum(g.record.stage is Stage.INIT for g in own)
            for g in own:
                self._leases.add(g.record)
            if own:
                agent.grants += 1
                agent.send(Grant(leases=[_lease(g) for g in own]))
        if len(granted) >= MAX_PER_GRANT:
            self.wake(key)

    def _grant(
        self,
        tx: Transaction,
        key: PoolKey,
        pool: RolloutPool,
        rooms: list[_NodeAgentCapacity],
        bursts: Mapping[str, Burst],
        served: ServedVersions,
        alone: int,
    ) -> list[_GrantedLease]:
        """Choose rollouts, and store their grants. Runs in the store's writer. `bursts`: one for each InferencePool.
        `alone`: number of node agents that this round may reserve."""
        now, default = self._clock.time(), pool.spec.sandbox.default_image or ""
        due = {hold.image: hold for hold in tx.image_holds(key) if hold.until <= now}
        images = _Images(default, set(due))
        matches = partial(_match_queue, tx, key, pool.spec.stages, rooms, now, served, alone, images)
        evals = islice(matches(Stage.EVAL), MAX_PER_GRANT)
        granted = [self._put(tx, record, room.node_agent, {}, now, choice) for record, room, choice in evals]
        if any(r.free[Stage.INIT] > 0 for r in rooms):
            mates: dict[str | None, Mapping[str, Endpoint]] = {}
            for record, room, choice in islice(matches(Stage.INIT), MAX_PER_GRANT):
                allow = _allowed_versions(tx, record, served)
                reasons: dict[str, str] = {}
                endpoints = _endpoints(
                    pool, record, room.node_agent, bursts, mates.get(record.group, {}), allow, reasons
                )
                if endpoints is None and allow is None:
                    break  # a role has no ready endpoint with room, so no later record can be granted
                if endpoints is None:
                    room.free[Stage.INIT] += 1
                    room.held -= 1
                    continue  # later records may use endpoints that this record may not use
                if record.group is not None:
                    mates[record.group] = endpoints
                choice = replace(choice, endpoints=reasons)
                granted.append(self._put(tx, record, room.node_agent, endpoints, now, choice))
                if (hold := due.get(images.of(record))) is not None:
                    tx.put_image_hold(tried(hold, now))
        ranks, latest = tx.queue_ranks(key), max((g.record.queue_rank for g in granted), default=0.0)
        if latest > ranks.served:
            tx.put_queue_ranks(key, replace(ranks, served=latest))
        return granted

    @staticmethod
    def _put(
        tx: Transaction,
        record: RolloutRecord,
        agent: ConnectedNodeAgent,
        endpoints: dict[str, Endpoint],
        now: float,
        choice: LeaseChoice,
    ) -> _GrantedLease:
        ids = {role: endpoint.id for role, endpoint in endpoints.items()}
        version = endpoints[POLICY_ROLE].weights_version if POLICY_ROLE in endpoints else None
        who = agent.identity
        after, _ = step(record, Granted(now, agent.holder, who.node, ids, version, who.allocation, choice))
        return _GrantedLease(agent, tx.put(after), endpoints)


def _endpoints(
    pool: RolloutPool,
    record: RolloutRecord,
    agent: ConnectedNodeAgent,
    bursts: Mapping[str, Burst],
    mate: Mapping[str, Endpoint],
    allow: Callable[[Endpoint], bool] | None,
    reasons: dict[str, str],
) -> dict[str, Endpoint] | None:
    """Return one allowed endpoint for each role; None if a role has none.

    `mate`: endpoints of the group's rollout that was granted last in this round. These endpoints are preferred, because
    all rollouts of a group begin with the same prompt, which is then in the endpoint's prefix cache. `reasons` gets the
    reason of each choice.
    """
    chosen: dict[str, Endpoint] = {}
    for role, name in pool.spec.inference.items():
        warm = [record.endpoints[role]] if role in record.endpoints else []
        warm += [mate[role].id] if role in mate else []
        limit = allow if role == POLICY_ROLE else None
        found = bursts[name].checkout(node=agent.identity.node, warm=warm, allow=limit)
        if found is None:
            return None
        chosen[role], reasons[role] = found, bursts[name].reason(found, node=agent.identity.node, warm=warm)
    return chosen


def _allowed_versions(
    tx: Transaction, record: RolloutRecord, served: ServedVersions
) -> Callable[[Endpoint], bool] | None:
    versions = allowed_versions(record, _group(tx, record), served)
    return None if versions is None else lambda endpoint: endpoint.weights_version in versions


def _group(tx: Transaction, record: RolloutRecord) -> GroupVersions:
    if record.group is None or record.weights is None or not record.weights.same:
        return GroupVersions()
    return tx.group_versions(record.namespace, record.group)


def _match_queue(
    tx: Transaction,
    key: PoolKey,
    stages: Stages,
    rooms: list[_NodeAgentCapacity],
    now: float,
    served: ServedVersions,
    alone: int,
    images: _Images,
    stage: Stage,
) -> Iterator[tuple[RolloutRecord, _NodeAgentCapacity, LeaseChoice]]:
    """Yield queued records in the order of the queue, each with a node agent for it and with the reason for the choice
    of this node agent. Reads at most MAX_QUEUE_PAGES pages of the queue. At most `alone` node agents are reserved."""
    last: RolloutRecord | None = None
    for _ in range(MAX_QUEUE_PAGES):
        takers = [r for r in rooms if r.free[stage] > 0]
        limit = MAX_PER_GRANT if last is not None else min(sum(r.free[stage] for r in takers), MAX_PER_GRANT)
        kinds = {kind for r in takers for kind in r.node_agent.kinds}
        minima = served.minimum_versions if stage is Stage.INIT else None
        losses = SUSPECT_LOSSES if sum(r.reserved for r in rooms) >= alone else None
        page = tx.queued(
            [key],
            [stage],
            now,
            limit,
            kinds=kinds,
            minima=minima,
            losses_below=losses,
            default_image=images.default,
            after=last,
        )
        for record in page:
            if is_suspect(record) and sum(r.reserved for r in rooms) >= alone:
                continue
            if stage is Stage.INIT and allowed_versions(record, _group(tx, record), served) == frozenset():
                continue  # the rollout may use only weights versions that no endpoint offers now
            if stage is Stage.INIT and not images.may_begin(record):
                continue
            able = [r for r in takers if r.can_take(record, stages, now)]
            ready = [r for r in able if images.of(record) in r.node_agent.ready_images]
            room = max(ready or able, key=lambda r: r.free[stage], default=None)
            if room is not None:
                if stage is Stage.INIT:
                    images.begin(record)
                usual = "MostRoom" if len(ready) in (0, len(able)) else "HasImage"
                why = "Exclusive" if is_suspect(record) else usual if len(able) > 1 else "OnlyOne"
                choice = LeaseChoice(why, room.free[stage], len(able))
                room.free[stage] -= 1
                room.held += 1
                room.reserved |= is_suspect(record)
                yield record, room, choice
            elif is_suspect(record) and not any(r.reserved for r in rooms):
                fitting = (r for r in takers if r.has_capacity(record, stages, now))
                if (least := min(fitting, key=lambda r: r.held, default=None)) is not None:
                    least.reserved = True
        if not page or len(page) < limit:
            return
        last = page[-1]


def _lease(granted: _GrantedLease) -> Lease:
    record = granted.record
    request = RolloutRequest.model_validate_json(record.request)
    return Lease(
        namespace=record.namespace,
        id=record.id,
        fence=record.fence,
        stage=record.stage,
        attempt=record.attempt,
        sample_index=record.sample_index,
        task=request.task,
        agent=request.agent,
        sampling=request.sampling,
        budgets=request.budgets,
        endpoints=granted.endpoints,
    )
