"""Conditions of RolloutPools that the reports of their node agents decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rollyard.kinds.base import evolve, set_conditions
from rollyard.kinds.top import MissingImageView
from rollyard.reconcilers.conditions import changes
from rollyard.reconcilers.rollout_pool import _enough_memory, _images_ready, _images_writable
from tests.support import make

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_node_with_too_little_memory_is_named_until_it_has_enough() -> None:
    pool, enough = make.rollout_pool(), make.agent(make.rollout_pool().pool_key, "b")
    short = make.agent(pool.pool_key, memory_shortage="runs 6 of 10 sandboxes: it has 8.0 GiB of memory")
    assert _enough_memory(pool, [enough]) == []
    (update,) = _enough_memory(pool, [enough, short])
    assert update.message.startswith("node n runs 6 of 10 sandboxes: it has 8.0 GiB of memory (set more memory")
    (twice,) = _enough_memory(pool, [short, short])
    assert "; 1 more allocation has too little memory (set more memory" in twice.message
    status = evolve(pool.status, conditions=set_conditions([], [update], generation=1, now=NOW))
    assert [event.reason for event in changes(pool.status, status)] == ["FewerSandboxes"]
    pool = evolve(pool, status=status)
    assert _enough_memory(pool, []) == [], "nobody has reported"
    (update,) = _enough_memory(pool, [enough])
    assert update.status


def test_missing_images_that_the_message_does_not_name_have_a_command_that_does() -> None:
    pool = make.rollout_pool()
    times: dict[str, Any] = {"failures": 1, "since": 0.0, "until": 9.0, "waiting": 1}
    missing = [
        MissingImageView(
            namespace="default", pool="swe", image=one, message=f"{one}: not found", permanent=False, **times
        )
        for one in "abc"
    ]
    (update,) = _images_ready(pool, missing)
    assert (
        update.message
        == f"a: not found; 2 more images cannot be had: `rollyard describe rp/{pool.metadata.name}` names all"
    )
    (update,) = _images_ready(pool, missing[:2])
    assert "; 1 more image cannot be had: " in update.message


def test_a_node_whose_kernel_keeps_folders_of_images_is_named_until_it_is_mended() -> None:
    pool = make.rollout_pool()
    short = make.agent(
        pool.pool_key, image_shortage="cannot remove or rename folders of images (rm: Input/output error)"
    )
    assert _images_writable(pool, [make.agent(pool.pool_key)]) == []
    (update,) = _images_writable(pool, [short])
    assert update.message.startswith(
        "node n cannot remove or rename folders of images (rm: Input/output error) (or use other"
    )
    status = evolve(pool.status, conditions=set_conditions([], [update], generation=1, now=NOW))
    assert [event.reason for event in changes(pool.status, status)] == ["FoldersStay"]
    (update,) = _images_writable(evolve(pool, status=status), [make.agent(pool.pool_key)])
    assert update.status
