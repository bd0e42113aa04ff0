"""Parts of the server that the routes use. `server_process.parts_and_wakeups` puts them together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollyard.core.clock import Clock
from rollyard.core.errors import Cause
from rollyard.gateway.external.external_sessions import ExternalSessions
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.planned_successor import PlannedSuccessor
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import Pool
from rollyard.kinds.token import RotationRequest, RotationResult
from rollyard.kinds.usage import SlurmUsageView
from rollyard.server.batches.service import BatchService
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgents
from rollyard.server.rollouts.missing_images import MissingImages
from rollyard.server.rollouts.request_checks import RequestChecks
from rollyard.server.rollouts.service import RolloutService
from rollyard.server.rollouts.stored_pools import StoredPools
from rollyard.server.routing.endpoint_choice import EndpointChoice
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.store.metric_buckets import Bucket
from rollyard.store.metric_tables import TrackKey
from rollyard.store.store import Store
from rollyard.trust.bearer_tokens import TokenSigner
from rollyard.trust.ca import Authority


@dataclass(frozen=True)
class Services:
    store: Store
    pools: StoredPools
    clock: Clock
    rollouts: RolloutService
    images: MissingImages
    request_checks: RequestChecks
    batches: BatchService
    node_agents: ConnectedNodeAgents
    endpoints: EndpointRegistry
    choice: EndpointChoice
    sessions: ExternalSessions
    signer: TokenSigner
    authority: Authority
    log_file: Callable[[str, str], Path]
    """Returns the file with the job's output for (namespace, allocation name)."""
    check_allocation: Callable[[Pool], Awaitable[tuple[Sequence[Cause], Sequence[str]]]]
    """Returns (mistakes, warnings) from the site's last known state. A pool with a mistake can never start."""
    submission: Callable[[Pool, Sequence[Allocation]], Submission]
    """Returns a preview of the jobs that a pool with these allocations would submit. Blocks for a moment; raises
    Invalid."""
    planned_successors: Callable[[Pool, Sequence[Allocation]], Sequence[PlannedSuccessor]]
    """Returns the successors that are still to be submitted for these allocations of a pool."""
    latest_metrics: Callable[[], Sequence[tuple[TrackKey, Bucket]]]
    """Returns the last recorded sample of each pool and endpoint."""
    slurm_usage: Callable[[str | None, float, int], Awaitable[SlurmUsageView]]
    """Returns the hours of jobs beside those of Slurm's accounting, for (namespace, since, most jobs to list). Raises
    Unavailable."""
    rotate_tokens: Callable[[RotationRequest], Awaitable[RotationResult]]


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
