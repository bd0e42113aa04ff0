"""Builders of the objects that tests are about: everything has a default, and a test names only what matters to it.

A field of a spec or a status may have either name, `jobState` or `job_state`; those with a default have the second.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollyard.client.server_link import ServerLink
from rollyard.core.clock import as_datetime
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.event import Event, InvolvedObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.job_state import JobState
from rollyard.kinds.weights import WeightsRecord, WeightsStatus
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.slurm.base import Job, JobListing
from rollyard.store.base import RolloutRecord
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import EngineHeartbeat, WeightsReport
from rollyard.wire.files import AllocationFile
from rollyard.wire.node import ToNode


def rollout_pool(name: str = "swe", status: Any = None, *, metadata: Any = None, **spec: Any) -> RolloutPool:
    given = {"metadata": {"name": name, **(metadata or {})}, "spec": _sized(spec), "status": status or {}}
    return RolloutPool.model_validate(given)


def inference_pool(name: str = "policy", status: Any = None, *, metadata: Any = None, **spec: Any) -> InferencePool:
    spec = {"model": {"path": "/m"}, "engine": {"embedded": {}}} | spec
    given = {"metadata": {"name": name, **(metadata or {})}, "spec": _sized(spec), "status": status or {}}
    return InferencePool.model_validate(given)


def _sized(spec: dict[str, Any]) -> dict[str, Any]:
    return spec if "autoscaling" in spec else {"replicas": 1, **spec}


def allocation(
    name: str = "swe-0",
    *,
    pool: str = "RolloutPool",
    uid: str = "",
    created: datetime | str | None = None,
    deleted: datetime | None = None,
    spec: Any = None,
    **status: Any,
) -> Allocation:
    """An allocation with the index at the end of its name. `pool`: the kind; `spec`: further fields."""
    owner, _, index = name.rpartition("-")
    metadata = {"name": name, "uid": uid, "creation_timestamp": created, "deletion_timestamp": deleted}
    owned = {"kind": pool, "name": owner or "p", "uid": "u"}
    plain = {"pool": owned, "index": index if owner else 0, "template_hash": "h", "template": {}}
    return Allocation.model_validate({"metadata": metadata, "spec": plain | (spec or {}), "status": status})


def identity(name: str = "a", *, node: str = "n", instance: str = "i") -> Identity:
    """Identity of a process in the allocation `name`, whose uid is the same word."""
    return Identity(allocation=name, namespace="default", uid=name, job_id="1", instance=instance, node=node)


def endpoint(id: str = "e", url: str = "", *, version: str = "v1", **more: Any) -> Endpoint:
    """An endpoint; `default/a` is the one of the engine in the allocation `a`."""
    plain = {"id": id, "url": url or f"https://{id.rpartition('/')[2]}", "model": "policy", "tokenizer": ""}
    plain["weights_version"] = version
    return Endpoint(**(plain | more))


def heartbeat(name: str = "a", *, url: str = "", version: str = "w", **more: Any) -> EngineHeartbeat:
    plain = {"identity": identity(name), "url": url or f"https://{name}", "ready": True}
    return EngineHeartbeat(**(plain | {"weights": WeightsReport(version=version)} | more))


def weights(*versions: str, current: str = "") -> WeightsStatus:
    """Weights of a pool that has served these versions in this order; the last one is current, or the named one."""
    since = datetime(2026, 1, 1, tzinfo=UTC)
    history = [WeightsRecord(version=v, path="/w", number=n, since=since) for n, v in enumerate(versions, 1)]
    found = next(record for record in reversed(history) if record.version == (current or versions[-1]))
    return WeightsStatus(current=found, history=history)


def agent(
    pool: PoolKey, name: str = "a", send: Callable[[ToNode], None] = lambda message: None, **more: Any
) -> ConnectedNodeAgent:
    return ConnectedNodeAgent(identity(name), pool, send, **({"expel": lambda: None} | more))


def server_link(endpoint_file: Path, pool: str = "demo") -> ServerLink:
    """The link of the process in the allocation `a`."""
    allocation = AllocationFile(
        allocation="a",
        namespace="default",
        uid="a",
        pool=pool,
        endpoint_file=str(endpoint_file),
        ca_file="",
        scratch="",
    )
    return ServerLink(allocation, endpoint_file.parent, "token", ssl.create_default_context())


def rollout(id: str = "r", **fields: Any) -> RolloutRecord:
    plain: dict[str, Any] = {
        "namespace": "default", "id": id, "digest": "d", "request": '{"pool":"p"}', "pool": "p", "task_kind": "math",
        "group": None, "sample_index": 0, "mode": "train", "priority": 0, "created_at": 1.0,
    }  # fmt: skip
    return RolloutRecord(**(plain | fields))


def event(name: str, *, at: float = 1_700_000_000.0, count: int = 1) -> Event:
    return Event(
        metadata=ObjectMeta(name=name),
        involved_object=InvolvedObject(kind="RolloutPool", namespace="default", name="swe"),
        type="Normal",
        reason="Created",
        message="a new allocation",
        count=count,
        first_timestamp=as_datetime(at),
        last_timestamp=as_datetime(at),
    )


def job(id: str, state: JobState = JobState.RUNNING, comment: str = "c", **more: Any) -> Job:
    return Job(id, "rollyard-swe-0", comment, state, **more)


def listing(*jobs: Job, at: float) -> JobListing:
    return JobListing(at, {j.id: j for j in jobs})
