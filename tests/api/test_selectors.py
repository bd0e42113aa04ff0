"""Label and field selectors as kubectl writes them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rollyard.api.selectors import selector
from rollyard.core.errors import BadRequest
from rollyard.kinds.base import KindObject
from rollyard.kinds.event import Event
from rollyard.kinds.rollout_pool import RolloutPool

POOL = RolloutPool.model_validate(
    {
        "metadata": {"name": "swe", "namespace": "ml", "labels": {"team": "a", "rollyard.dev/tier": "gold", "x": ""}},
        "spec": {"replicas": 1},
    }
)
EVENT = Event.model_validate(
    {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "RolloutPool", "name": "swe", "namespace": "ml", "uid": "u-1"},
        "type": "Normal", "reason": "R", "message": "m",
        "firstTimestamp": datetime.now(UTC), "lastTimestamp": datetime.now(UTC),
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "passes"),
    [
        ("", True),
        ("team=a", True),
        ("team==a", True),
        ("team = a", True),
        ("team=b", False),
        ("team!=b", True),
        ("team!=a", False),
        ("nothing!=a", True),
        ("team in (a, b)", True),
        ("team in (b)", False),
        ("team notin (b,c)", True),
        ("team notin (a,c)", False),
        ("nothing in (a)", False),
        ("nothing notin (a)", True),
        ("team", True),
        ("nothing", False),
        ("!team", False),
        ("!nothing", True),
        ("x=", True),
        ("rollyard.dev/tier=gold,team in (a,b),!nothing", True),
        ("rollyard.dev/tier=gold,team in (b,c)", False),
    ],
)
def test_labels(labels: str, passes: bool) -> None:
    assert selector(labels, "")(POOL) is passes


@pytest.mark.parametrize(
    ("fields", "obj", "passes"),
    [
        ("metadata.name=swe", POOL, True),
        ("metadata.name!=swe", POOL, False),
        ("metadata.namespace==ml,metadata.name=swe", POOL, True),
        ("metadata.namespace=ml,metadata.name=other", POOL, False),
        ("involvedObject.name=swe,involvedObject.kind=RolloutPool,involvedObject.uid=u-1", EVENT, True),
        ("involvedObject.namespace!=ml", EVENT, False),
        ("involvedObject.kind=RolloutPool", POOL, False),
    ],
)
def test_fields(fields: str, obj: KindObject, passes: bool) -> None:
    assert selector("", fields)(obj) is passes


def test_both_kinds_of_terms_must_hold() -> None:
    assert selector("team=a", "metadata.name=swe")(POOL)
    assert not selector("team=a", "metadata.name=x")(POOL)
    assert not selector("team=b", "metadata.name=swe")(POOL)


@pytest.mark.parametrize("labels", ["team in a", "a b", "team>1", "(", "team in (a"])
def test_what_cannot_be_read_says_what_can(labels: str) -> None:
    with pytest.raises(BadRequest, match="write key=value"):
        selector(labels, "")


@pytest.mark.parametrize("fields", ["spec.replicas=1", "metadata.uid", "name=swe"])
def test_an_unknown_field_is_refused(fields: str) -> None:
    with pytest.raises(BadRequest, match="field label not supported"):
        selector("", fields)
