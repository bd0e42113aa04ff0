"""Conditions of RolloutPools that the reports of their node agents decide."""

from __future__ import annotations

from datetime import UTC, datetime

from rollyard.kinds.base import evolve, set_conditions
from rollyard.reconcilers.conditions import changes
from rollyard.reconcilers.rollout_pool import _enough_memory, _images_writable
from tests.support import make

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_node_with_too_little_memory_is_named_until_it_has_enough() -> None:
    pool, enough = make.rollout_pool(), make.agent(make.rollout_pool().pool_key, "b")
    short = make.agent(pool.pool_key, memory_shortage="runs 6 of 10 sandboxes: its job has 8.0 GiB of memory")
    assert _enough_memory(pool, [enough]) == []
    (update,) = _enough_memory(pool, [enough, short])
    assert update.message.startswith("node n runs 6 of 10 sandboxes: its job has 8.0 GiB of memory (set more memory")
    (twice,) = _enough_memory(pool, [short, short])
    assert "; 1 more allocation has too little memory (set more memory" in twice.message
    status = evolve(pool.status, conditions=set_conditions([], [update], generation=1, now=NOW))
    assert [event.reason for event in changes(pool.status, status)] == ["FewerSandboxes"]
    pool = evolve(pool, status=status)
    assert _enough_memory(pool, []) == [], "nobody has reported"
    (update,) = _enough_memory(pool, [enough])
    assert update.status


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
