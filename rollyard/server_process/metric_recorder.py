"""The recorder of metrics over time: each 10 seconds, one sample of every pool and endpoint, in one transaction.

The values are those of `rollyard top` and of the pools' statuses. A sample is taken in the middle of its bucket, so that a late
wake-up does not leave a bucket empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from rollyard.core.clock import Clock
from rollyard.core.errors import Unavailable
from rollyard.kinds.inference_pool import EndpointStatus, InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.inference_pool import requested_sessions
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.stage_load import stage_load
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.routing.endpoint_metrics import endpoint_status, metrics_of, total_metrics
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.store.metric_buckets import POOLS, Bucket, sample, start_of
from rollyard.store.metric_tables import MetricTables, StoredDecision, TrackKey

log = logging.getLogger(__name__)

MAX_ENDPOINTS = 32
"""Greatest number of endpoints of one pool that are recorded at the same time. The pool's own metrics cover all."""
_STEP = POOLS[0].step


class MetricRecorder:
    """The only writer of metrics over time."""

    def __init__(
        self,
        tables: MetricTables,
        clock: Clock,
        pools: StoredPools,
        rollouts: RolloutService,
        node_agents: ConnectedNodeAgents,
        endpoints: EndpointRegistry,
        outside_demand: Callable[[PoolKey], int],
    ) -> None:
        """`outside_demand`: returns the number of open and requested sessions of external agents in an InferencePool."""
        self._tables = tables
        self._clock = clock
        self._pools = pools
        self._rollouts = rollouts
        self._node_agents = node_agents
        self._endpoints = endpoints
        self._outside_demand = outside_demand
        self.latest: Sequence[tuple[TrackKey, Bucket]] = ()
        """Last sample of each pool and endpoint."""
        self._followed: dict[PoolKey, list[str]] = {}
        """Endpoints of each pool that are recorded. An endpoint stays until it is gone."""
        self._decided: dict[TrackKey, float] = {}
        """Time of each pool's last stored decision."""

    async def run(self) -> None:
        """Record for ever."""
        while True:
            now = self._clock.time()
            await asyncio.sleep(start_of(now, _STEP) + 1.5 * _STEP - now)
            try:
                await self.record()
            except Unavailable as error:
                log.warning("metrics were not recorded this time: %s", error)

    async def record(self) -> None:
        """Store one sample of every pool and endpoint, and the new scaling decisions."""
        running, serving = await self._pools.rollout_pools(), await self._pools.inference_pools()
        samples = [(_key(pool), await self._of_rollout_pool(pool)) for pool in running]
        samples += [(_key(pool), await self._of_inference_pool(pool, running)) for pool in serving]
        held = self._endpoints.sessions.counts()
        for pool in serving:
            for state in self._follow(pool.pool_key):
                shown = endpoint_status(state, held, metrics_of(state))
                samples.append((TrackKey(pool.kind, *pool.pool_key, state.endpoint.id), _of_endpoint(shown)))
        self._followed = {key: ids for key, ids in self._followed.items() if any(p.pool_key == key for p in serving)}
        self.latest = samples
        pools: list[Pool] = [*running, *serving]
        decisions = [decision for pool in pools for decision in self._new_decisions(pool)]
        await self._tables.record(self._clock.time(), samples, decisions)
        self._decided = {_key(pool): max(_decided_at(pool), default=0.0) for pool in pools}

    async def _of_rollout_pool(self, pool: RolloutPool) -> Bucket:
        key = pool.pool_key
        queued, in_flight = await self._rollouts.queued(key), self._rollouts.leases.in_flight(*key)
        waiting, working = sum(queued.values()), sum(in_flight.values())
        stages = stage_load(queued, in_flight, self._node_agents.of_pool(key)).values()
        pace = self._rollouts.completion_rate.per_minute(key)
        ended = None if pace is None else round(sum(pace.values()), 1)
        by_stage = [n for stage in stages for n in (stage.queued, stage.in_flight, stage.width)]
        return sample([*_replicas(pool), waiting + working, waiting, working, *by_stage, ended])

    async def _of_inference_pool(self, pool: InferencePool, users: Iterable[RolloutPool]) -> Bucket:
        states, held = self._endpoints.of_pool(pool.pool_key), self._endpoints.sessions.counts()
        demand = await requested_sessions(pool, users, self._rollouts, self._outside_demand)
        load = total_metrics(states)
        sessions = sum(held.get(state.endpoint.id, 0) for state in states)
        versions = ",".join(sorted({state.endpoint.weights_version for state in states if state.ready}))
        values = (load.running, load.waiting, load.kv_usage, load.prefix_hit_rate, load.tokens_per_second)
        rest = (load.prompt_tokens_per_second, load.first_token_seconds)
        return sample([*_replicas(pool), demand, sessions, *values, *rest], versions)

    def _follow(self, pool: PoolKey) -> Sequence[EndpointState]:
        """Return the endpoints of the pool that are recorded."""
        states = {state.endpoint.id: state for state in self._endpoints.of_pool(pool)}
        followed = [id for id in self._followed.get(pool, []) if id in states]
        new = [id for id in states if id not in followed]
        self._followed[pool] = [*followed, *new][:MAX_ENDPOINTS]
        return [states[id] for id in self._followed[pool]]

    def _new_decisions(self, pool: Pool) -> Iterator[StoredDecision]:
        last = self._decided.get(_key(pool), 0.0)
        for decision in pool.status.decisions:
            time = decision.time.timestamp()
            if time >= last:  # two decisions may be of the same second; a stored one stays as it is
                yield StoredDecision(pool.kind, *pool.pool_key, time, decision.desired, decision.message)


def _key(pool: Pool) -> TrackKey:
    return TrackKey(pool.kind, *pool.pool_key)


def _decided_at(pool: Pool) -> Iterator[float]:
    return (decision.time.timestamp() for decision in pool.status.decisions)


def _replicas(pool: Pool) -> tuple[int, int, int, int]:
    found = pool.status.replicas
    return found.desired, found.requested, found.observed, found.ready


def _of_endpoint(shown: EndpointStatus) -> Bucket:
    load = (shown.running, shown.waiting, shown.kv_usage, shown.prefix_hit_rate, shown.tokens_per_second)
    rest = (shown.prompt_tokens_per_second, shown.first_token_seconds)
    return sample([int(shown.ready), shown.sessions, *load, *rest], shown.weights_version)
