"""Objects and records to store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollyard.core.clock import as_datetime
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.event import Event, InvolvedObject
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec
from rollyard.server.store.base import RolloutRecord


def pool(name: str = "swe", *, replicas: int = 1, namespace: str = "default", **metadata: Any) -> RolloutPool:
    return RolloutPool(
        metadata=ObjectMeta(name=name, namespace=namespace, **metadata), spec=RolloutPoolSpec(replicas=replicas)
    )


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


_PLAIN = RolloutRecord(
    namespace="default",
    id="r",
    digest="d",
    request='{"pool":"swe","task":{"kind":"math"}}',
    pool="swe",
    task_kind="math",
    group=None,
    sample_index=0,
    mode="train",
    priority=0,
    created_at=1_700_000_000.0,
)


def record(id: str, **fields: Any) -> RolloutRecord:
    return replace(_PLAIN, id=id, **fields)
