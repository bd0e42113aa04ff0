"""What the handlers work on; put together by `serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from rollyard.clock import Clock
from rollyard.errors import Cause
from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.pools import Pool
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
    signer: TokenSigner
    authority: Authority
    log_file: Callable[[str, str], Path]
    """(namespace, allocation name) -> the file with the job's output."""
    check_allocation: Callable[[AllocationTemplate], Sequence[Cause]]
    """What of a template this site can never fulfil, as far as that can be read just now."""
    batch_script: Callable[[Pool], str]
    """What would be submitted for the pool's next allocation. Raises Invalid."""
    task_kinds: frozenset[str]
    """Task kinds that have a handler installed here."""


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
