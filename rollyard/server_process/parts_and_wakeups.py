"""The parts of a server and their wiring: which part answers which query, and which event wakes which part.

If a part A needs answers from a part B, the constructor of A takes B, or a method of B, as an argument. So a
forgotten connection is a TypeError. Events are signals (`aio.Signal`). `Routing` and `_Wakes` connect the signals to
parts, one event in each line. Tests and benchmarks use these classes too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ParamSpec

import aiohttp

from rollyard.api.services import Services
from rollyard.core.aio import Signal
from rollyard.core.clock import Clock
from rollyard.core.lease_time import LEASE_SECONDS
from rollyard.core.telemetry import IMAGE_CACHE_BYTES, IMAGE_CACHE_LAYERS, SANDBOXES, STAGE_WORKERS
from rollyard.gateway.external.external_sessions import ExternalSessions
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.reconcilers.preview import Preview
from rollyard.reconcilers.renewal import planned_successors
from rollyard.reconcilers.watches import build_reconcilers
from rollyard.server.batches.keeper import BatchKeeper
from rollyard.server.batches.service import BatchService
from rollyard.server.batches.settlement import Settlements
from rollyard.server.batches.task_sources import TaskSources
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent, ConnectedNodeAgents
from rollyard.server.rollouts.dispatch import Dispatcher
from rollyard.server.rollouts.image_prefetcher import ImagePrefetcher
from rollyard.server.rollouts.lease_expiry import LeaseExpiry
from rollyard.server.rollouts.leases import Leases
from rollyard.server.rollouts.missing_images import MissingImages
from rollyard.server.rollouts.move_hints import MoveHints
from rollyard.server.rollouts.queue_limit import QueueLimit
from rollyard.server.rollouts.request_checks import RequestChecks
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.stage_resizer import StageResizer
from rollyard.server.rollouts.staleness_watch import StalenessWatch
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.routing.endpoint_choice import EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.server.routing.external_placement import ExternalPlacement
from rollyard.server.routing.probe_loop import EndpointProber
from rollyard.server.routing.rebalance import Rebalancer
from rollyard.server.routing.session_index import SessionIndex
from rollyard.server_process.metric_recorder import MetricRecorder
from rollyard.server_process.slurm_usage import SlurmUsage
from rollyard.server_process.token_rotation import TokenRotation
from rollyard.slurm.base import Driver
from rollyard.store.store import Store
from rollyard.trust.bearer_tokens import TokenSigner
from rollyard.trust.ca import Authority
from rollyard.trust.tls_contexts import client_ssl_context
from rollyard.wire.node import SandboxCounts

P = ParamSpec("P")

SCALE_SECONDS = 0.2
"""Delay between new demand and the reconcile of the pool. All demand within this time causes one change of size."""
SHOWN_SECONDS = 1.0
"""Delay between a change of widths and the reconcile that writes the widths to the pool's status."""


class Routing:
    """Parts that choose and change the endpoints of sessions. All state is in memory. A simulation can pass its own clock."""

    def __init__(self, clock: Clock, lease_seconds: float = LEASE_SECONDS) -> None:
        self.sessions = SessionIndex()
        self.node_agents, self.leases = ConnectedNodeAgents(clock), Leases(clock, lease_seconds, self.sessions)
        self.endpoints = EndpointRegistry(clock, self.sessions)
        self.choice = EndpointChoice(clock, self.endpoints, self.sessions)
        self.hints = MoveHints(clock, self.node_agents, self.leases)
        wake(self.endpoints.endpoint_updated, self.choice.rank)
        wake(self.sessions.sessions_changed, self.choice.recount)

    def rebalancer(self, ask_external: Callable[[str, str, bool], bool]) -> Rebalancer:
        """Make the part that moves sessions. `ask_external` requests the move of an external agent's session."""
        made = Rebalancer(self.endpoints, self.choice, self.sessions, self.hints.send, ask_external)
        wake(self.endpoints.endpoint_changed, lambda state: made.waker.wake())
        wake(self.endpoints.token_renewed, made.ask_all)
        return made


class Parts:
    """All parts of one server. The caller runs each part that has a method `run`, except `feed`, which `manager` runs.
    The caller also calls `close` at the end."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        data: Path,
        clock: Clock,
        lease_seconds: float = LEASE_SECONDS,
        connector: aiohttp.BaseConnector | None = None,
    ) -> None:
        """`data`: folder with keys and allocations. `connector`: opens connections to model servers; the default one
        trusts our CA."""
        self.store, self.clock = store, clock
        objects, records, batches = store.objects, store.rollouts, store.batches
        self.authority = Authority.open(data / "keys")
        self.signer = TokenSigner.open(data / "keys" / "token.key")
        trust = client_ssl_context(self.authority.ca_pem)
        connector = connector or aiohttp.TCPConnector(ssl=trust, limit=0)
        routing, pools = Routing(clock, lease_seconds), StoredPools(objects)
        self.pools = pools
        self.node_agents, self.leases, self.endpoints = routing.node_agents, routing.leases, routing.endpoints
        self.choice, self.session_index = routing.choice, routing.sessions
        node_agents, leases, endpoints = self.node_agents, self.leases, self.endpoints
        # Arguments such as `slots=` and `pools=` are functions through which a part queries another part.
        self.settlements = settlements = Settlements()
        self.rollouts = rollouts = RolloutService(
            records, clock, node_agents, leases, settlements.settle_ended, pools.max_attempts
        )
        self.images = MissingImages(rollouts, clock, node_agents, pool=pools.rollout_pool)
        self.image_prefetcher = ImagePrefetcher(records, clock, node_agents, pool=pools.rollout_pool)
        self.request_checks = RequestChecks(store, pools, node_agents, QueueLimit(records, clock))
        self.lease_expiry = LeaseExpiry(self.rollouts)
        self.batches = BatchService(
            batches, clock, rollouts, settlements, slots=node_agents.slots, sources=TaskSources()
        )
        self.batch_keeper = BatchKeeper(
            batches, clock, self.batches, slots=node_agents.slots, pools=pools.rollout_pools
        )
        placement = ExternalPlacement(endpoints, routing.choice, routing.sessions)
        self.sessions = ExternalSessions(connector, placement, store.sessions)
        self.rebalancer = routing.rebalancer(ask_external=self.sessions.ask_to_move)
        self.prober = EndpointProber(endpoints, trust=trust, pools=pools.inference_pools)
        self.dispatcher = Dispatcher(
            records, clock, node_agents, leases, endpoints, routing.choice, pool=pools.rollout_pool
        )
        self.resizer = StageResizer(clock, node_agents, queued=self._demand, stages=pools.stages)
        self.weights_watch = StalenessWatch(rollouts, clock=clock, endpoints=endpoints, pools=pools.rollout_pools)
        self.metric_recorder = MetricRecorder(
            store.metrics, clock, pools, rollouts, node_agents, endpoints, outside_demand=self.sessions.demand
        )
        self.slurm_usage = SlurmUsage(store, driver, clock)
        self.workspace = AllocationFolders(data, store.server_id, issue=self.signer.issue)
        self.tokens = TokenRotation(self.signer, self.authority, self.workspace, store, data, clock)
        reconcilers = build_reconcilers(
            objects,
            driver,
            self.workspace,
            node_agents,
            endpoints,
            rollouts,
            clock=clock,
            outside_demand=self.sessions.demand,
            note_ended=store.ended_allocations.add,
        )
        self.manager, self.feed = reconcilers.manager, reconcilers.feed
        _Wakes(self).connect()
        for stage in Stage:
            STAGE_WORKERS.labels(stage.value.lower()).set_function(partial(self.node_agents.width, stage))
        for what in SandboxCounts.model_fields:
            SANDBOXES.labels(what).set_function(partial(self._count_sandboxes, what))
        for what, name in (("stored", "bytes"), ("unshared", "unshared_bytes"), ("evicted", "evicted_bytes")):
            IMAGE_CACHE_BYTES.labels(what).set_function(partial(self._count_images, name))
        for what, name in (("stored", "layers"), ("evicted", "evicted_layers")):
            IMAGE_CACHE_LAYERS.labels(what).set_function(partial(self._count_images, name))

    def _count_sandboxes(self, what: str) -> int:
        count: int = getattr(self.node_agents.sandboxes(), what)
        return count

    def _count_images(self, name: str) -> int:
        count: int = getattr(self.node_agents.image_storage(), name)
        return count

    def services(self) -> Services:
        """Return the parts that the API uses."""
        preview = Preview(self.workspace, self.feed, self.clock)
        return Services(
            store=self.store,
            pools=self.pools,
            clock=self.clock,
            rollouts=self.rollouts,
            images=self.images,
            request_checks=self.request_checks,
            batches=self.batches,
            node_agents=self.node_agents,
            endpoints=self.endpoints,
            choice=self.choice,
            sessions=self.sessions,
            signer=self.signer,
            authority=self.authority,
            log_file=self.workspace.log_file,
            check_allocation=preview.check,
            submission=preview.submission,
            planned_successors=planned_successors,
            latest_metrics=lambda: self.metric_recorder.latest,
            slurm_usage=self.slurm_usage.compare,
            rotate_tokens=self.tokens.rotate,
        )

    async def _demand(self, pool: PoolKey) -> dict[Stage, int]:
        """Return the queued rollouts that stage workers can take, by stage. Raises NotFound."""
        spec = (await self.pools.rollout_pool(pool)).spec
        return await self.rollouts.demand(pool, spec.sandbox.default_image)

    async def close(self) -> None:
        """Close the parts with open resources: the sessions of external agents and their connections."""
        await self.sessions.shut_down()


class _Wakes:
    """Connections of events to parts. Each method except `connect` takes the arguments of an event, and wakes a part or
    adds keys to the reconcilers' queue."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._dispatcher, self._resizer, self._manager = parts.dispatcher, parts.resizer, parts.manager

    def connect(self) -> None:
        """Connect all events except two kinds. `Routing` connects its own events, and `reconcilers/watches.py` connects
        changes of objects and jobs."""
        p = self._parts
        wake(p.node_agents.node_agent_changed, self.dispatch_to, self.resize, self.reconcile_node_agent)
        wake(p.node_agents.room_offered, p.dispatcher.wake)
        wake(p.node_agents.work_moved, self.resize)
        wake(p.node_agents.widths_changed, self.resize, self.show_widths, lambda agent: p.batch_keeper.waker.wake())
        wake(p.endpoints.endpoint_changed, self.dispatch_onto, self.check_staleness, self.reconcile_endpoint)
        wake(p.endpoints.weights_changed, self.dispatch_near, self.check_staleness)
        wake(p.endpoints.capacity_freed, self.dispatch_near)
        wake(p.sessions.template_proven, lambda one: p.endpoints.note_proof(one.tokenizer, one.proof))
        wake(p.endpoints.endpoint_suspected, lambda endpoint: p.prober.suspected.wake())
        wake(p.endpoints.externals_changed, lambda pool: p.prober.relisted.wake())
        wake(p.settlements.batch_changed, p.batches.notify)
        wake(p.rollouts.rollout_queued, p.dispatcher.wake, self.resize_pool, self.scale)
        wake(p.images.changed, self.show_images)
        wake(p.sessions.session_refused, self.reconcile_inference_pool)

    def dispatch_to(self, agent: ConnectedNodeAgent) -> None:
        self._dispatcher.wake(agent.pool)

    def dispatch_onto(self, state: EndpointState) -> None:
        self.dispatch_near(state.pool)

    def dispatch_near(self, pool: PoolKey) -> None:
        """Wake dispatch for the pools of all connected node agents in the namespace of this InferencePool, because each
        of these pools may use the InferencePool."""
        for agent in self._parts.node_agents.all():
            if agent.pool.namespace == pool.namespace:
                self._dispatcher.wake(agent.pool)

    def resize(self, agent: ConnectedNodeAgent) -> None:
        self._resizer.wake(agent.pool)

    def resize_pool(self, pool: PoolKey, at: float) -> None:
        self._resizer.wake(pool)

    def check_staleness(self, changed: EndpointState | PoolKey) -> None:
        self._parts.weights_watch.waker.wake()

    def reconcile_node_agent(self, agent: ConnectedNodeAgent) -> None:
        self._manager.add(RolloutPool.key_of(*agent.pool))
        self._manager.add(Allocation.key_of(agent.pool.namespace, agent.identity.allocation))

    def reconcile_endpoint(self, state: EndpointState) -> None:
        self.reconcile_inference_pool(state.pool)
        if state.allocation:
            self._manager.add(Allocation.key_of(state.pool.namespace, state.allocation))

    def reconcile_inference_pool(self, pool: PoolKey) -> None:
        self._manager.add(InferencePool.key_of(*pool))

    def scale(self, pool: PoolKey, at: float) -> None:
        self._manager.add(RolloutPool.key_of(*pool), SCALE_SECONDS)

    def show_images(self, pool: PoolKey) -> None:
        self._manager.add(RolloutPool.key_of(*pool), SHOWN_SECONDS)

    def show_widths(self, agent: ConnectedNodeAgent) -> None:
        self._manager.add(RolloutPool.key_of(*agent.pool), SHOWN_SECONDS)


def wake(event: Signal[P], *listeners: Callable[P, object]) -> None:
    for listener in listeners:
        event.connect(listener)
