"""Hands queued rollouts to node agents: one pool at a time, the emptiest node agent first, endpoints with the lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from rollyard.clock import Clock
from rollyard.errors import RollyardError
from rollyard.kinds.pools import SPARE_SECONDS, RolloutPool, Stages
from rollyard.kinds.rollout import RolloutRequest, Stage
from rollyard.kinds.wire import Endpoint, Grant, Lease
from rollyard.rollouts.agents import Agents, NodeAgent, PoolKey
from rollyard.rollouts.leases import Leases
from rollyard.rollouts.step import Granted, step
from rollyard.store.base import RolloutRecord, Store, Transaction

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
MAX_PER_GRANT = 256
PAGES = 4
"""Of the queue, in one look: so far does it go past what nobody takes."""
TO_COME = {Stage.INIT: ("init", "run", "eval"), Stage.EVAL: ("eval",)}


class Checkout(Protocol):
    def checkout(
        self, *, node: str = "", warm: Sequence[str] = (), allow: Callable[[Endpoint], bool] | None = None
    ) -> Endpoint | None: ...


class Placement(Protocol):
    """Where the endpoints come from; `inference.Endpoints` is one."""

    def heap(self, pool: tuple[str, str]) -> Checkout: ...


@dataclass(frozen=True, slots=True)
class _Granted:
    agent: NodeAgent
    record: RolloutRecord
    endpoints: dict[str, Endpoint]


@dataclass(slots=True)
class _Room:
    """What a node agent asked for when the round began; taken from in the writer, so no state of the loop is touched."""

    agent: NodeAgent
    free: dict[Stage, int]
    """By the stage that a lease begins with."""

    def takes(self, record: RolloutRecord, stages: Stages, now: float) -> bool:
        """Whether it has room, knows this kind of task, and what is left of its walltime covers the stages to come."""
        if self.free[record.stage] <= 0 or record.task_kind not in self.agent.kinds:
            return False
        if self.agent.ends is None:
            return True
        left = self.agent.ends - now - SPARE_SECONDS
        pools = {word: float(getattr(stages, word).timeout_seconds) for word in TO_COME[record.stage]}
        if left >= sum(pools.values()):
            return True
        own = RolloutRequest.model_validate_json(record.request).budgets  # read only where it may decide
        return left >= sum(min(limit, getattr(own, f"{word}_seconds") or limit) for word, limit in pools.items())


class Dispatcher:
    """Wakes for a pool when work, room, or an endpoint appears."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        agents: Agents,
        leases: Leases,
        placement: Placement,
        pool: Callable[[PoolKey], Awaitable[RolloutPool]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._agents = agents
        self._leases = leases
        self._placement = placement
        self._pool = pool
        self._due: set[PoolKey] = set()
        self._wake = asyncio.Event()

    def wake(self, pool: PoolKey, at: float = 0.0) -> None:
        """Look at this pool now, or at `at` (Unix seconds) when that is later."""
        delay = at - self._clock.time()
        if delay > 0:
            asyncio.get_running_loop().call_later(delay + 0.001, self.wake, pool)
            return
        self._due.add(pool)
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        whole_round = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the wake.
                async with asyncio.timeout_at(whole_round):
                    await self._wake.wait()
            self._wake.clear()
            due, self._due = self._due, set()
            if loop.time() >= whole_round:  # a safety net: whatever wake was missed, nothing waits longer than this
                due |= {a.pool for a in self._agents.all()}
                whole_round = loop.time() + RETRY_SECONDS
            for pool in due:
                try:
                    await self._dispatch(pool)
                except RollyardError as error:
                    log.warning("nothing handed out in pool %s/%s: %s", *pool, error)

    async def _dispatch(self, key: PoolKey) -> None:
        agents = [a for a in self._agents.of_pool(key) if not a.draining and (a.want_init > 0 or a.want_eval > 0)]
        if not agents:
            return
        pool = await self._pool(key)
        if pool.metadata.deletion_timestamp is not None or pool.spec.suspend:
            return
        rooms = [_Room(a, {Stage.INIT: a.want_init, Stage.EVAL: a.want_eval}) for a in agents]
        heaps = {name: self._placement.heap((key[0], name)) for name in pool.spec.inference.values()}
        granted = await self._store.transact(lambda tx: self._grant(tx, key, pool, rooms, heaps))
        for agent in agents:
            own = [g for g in granted if g.agent is agent]
            agent.want_eval -= sum(g.record.stage is Stage.EVAL for g in own)
            agent.want_init -= sum(g.record.stage is Stage.INIT for g in own)
            for g in own:
                self._leases.add(g.record)
            if own:
                agent.grants += 1
                agent.send(Grant(leases=[_lease(g) for g in own]))
        if len(granted) >= MAX_PER_GRANT:
            self.wake(key)

    def _grant(
        self, tx: Transaction, key: PoolKey, pool: RolloutPool, rooms: list[_Room], heaps: Mapping[str, Checkout]
    ) -> list[_Granted]:
        """In the writer: pick, step, put. `heaps`: by InferencePool."""
        now = self._clock.time()
        matches = partial(_matches, tx, key, pool.spec.stages, rooms, now)
        evals = islice(matches(Stage.EVAL), MAX_PER_GRANT)
        granted = [self._put(tx, record, room.agent, {}, now) for record, room in evals]
        if any(r.free[Stage.INIT] > 0 for r in rooms):
            mates: dict[str | None, Mapping[str, Endpoint]] = {}
            for record, room in islice(matches(Stage.INIT), MAX_PER_GRANT):
                mate = mates.get(record.group, {})  # the rollouts of a group begin with the same prompt
                endpoints: dict[str, Endpoint] = {}
                for role, name in pool.spec.inference.items():
                    warm = [record.endpoints[role]] if role in record.endpoints else []
                    warm += [mate[role].id] if role in mate else []
                    found = heaps[name].checkout(node=room.agent.identity.node, warm=warm)
                    if found is not None:
                        endpoints[role] = found
                if len(endpoints) < len(pool.spec.inference):
                    break  # a role has no endpoint that is ready and not full; its pool's conditions say why
                if record.group is not None:
                    mates[record.group] = endpoints
                granted.append(self._put(tx, record, room.agent, endpoints, now))
        return granted

    @staticmethod
    def _put(
        tx: Transaction, record: RolloutRecord, agent: NodeAgent, endpoints: dict[str, Endpoint], now: float
    ) -> _Granted:
        ids = {role: endpoint.id for role, endpoint in endpoints.items()}
        after, _ = step(record, Granted(now, agent.holder, agent.identity.node, ids))
        return _Granted(agent, tx.put(after), endpoints)


def _matches(
    tx: Transaction, key: PoolKey, stages: Stages, rooms: list[_Room], now: float, stage: Stage
) -> Iterator[tuple[RolloutRecord, _Room]]:
    """What waits for this stage and who takes it, in the order of the queue; past what nobody takes for so many PAGES."""
    last: RolloutRecord | None = None
    for _ in range(PAGES):
        takers = [r for r in rooms if r.free[stage] > 0]
        limit = MAX_PER_GRANT if last is not None else min(sum(r.free[stage] for r in takers), MAX_PER_GRANT)
        kinds = {kind for r in takers for kind in r.agent.kinds}
        page = tx.queued([key], [stage], now, limit, kinds=kinds, after=last)
        for record in page:
            able = (r for r in takers if r.takes(record, stages, now))
            room = max(able, key=lambda r: r.free[stage], default=None)
            if room is not None:
                room.free[stage] -= 1
                yield record, room
        if not page or len(page) < limit:
            return
        last = page[-1]


def _lease(granted: _Granted) -> Lease:
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
