"""All kinds, found by their names in commands and URLs."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject
from rollyard.kinds.event import Event
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool

Pool = InferencePool | RolloutPool
"""Kinds with allocations."""
POOL_KINDS = (InferencePool, RolloutPool)

KINDS: dict[str, type[KindObject]] = {
    k.model_fields["kind"].default: k for k in (InferencePool, RolloutPool, Allocation, Event)
}
BY_PLURAL: dict[str, type[KindObject]] = {k.PLURAL: k for k in KINDS.values()}


def find_kind(word: str) -> type[KindObject] | None:
    """Return the kind for words such as `RolloutPool`, `rolloutpools`, `rolloutpool` or `rp`; None for other words."""
    low = word.lower()
    return next((k for name, k in KINDS.items() if low in (name.lower(), k.PLURAL, k.SINGULAR, *k.SHORT)), None)


def parse_object(data: dict[str, Any]) -> KindObject:
    """Parse an object from a server into its model. Unknown fields, which a newer server may send, are ignored.

    Raises pydantic.ValidationError, or KeyError for an unknown kind.
    """
    return KINDS[data["kind"]].model_validate(data, extra="ignore")
