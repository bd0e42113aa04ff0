"""What the handlers work on; put together by `serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollyard.clock import Clock
from rollyard.errors import Cause
from rollyard.gateway.outside import OutsideSessions
from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import Pool
from rollyard.kinds.submission import Submission
from rollyard.rollouts.agents import Agents
from rollyard.rollouts.service import Rollouts
from rollyard.store.base import Store
from rollyard.trust.ca import Authority
from rollyard.trust.tokens import TokenSigner


@dataclass(frozen=True)
class Services:
    store: Store
    clock: Clock
    rollouts: Rollouts
    agents: Agents
    endpoints: Endpoints
    sessions: OutsideSessions
    signer: TokenSigner
    authority: Authority
    log_file: Callable[[str, str], Path]
    """(namespace, allocation name) -> the file with the job's output."""
    check_allocation: Callable[[Pool], tuple[Sequence[Cause], Sequence[str]]]
    """(what of its template this site can never fulfil, what else one should know), as far as that can be read just now."""
    submission: Callable[[Pool, Sequence[Allocation]], Submission]
    """What would be submitted for a pool that has these allocations. Blocks for a moment; raises Invalid."""
    task_kinds: frozenset[str]
    """Task kinds that have a handler installed here."""


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
