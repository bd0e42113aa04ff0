"""Revisions of a pool: each template once, the present one at the end, at most ten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rollyard.kinds.base import evolve
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.plan import template_hash
from rollyard.reconcilers.revisions import KEPT, revisions
from tests.support import make

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def after(pool: Pool, **spec: Any) -> Pool:
    """The pool with another spec, once its reconciler has seen it."""
    changed = evolve(pool, spec=evolve(pool.spec, **spec))
    found = revisions(changed, template_hash(changed), NOW)
    return evolve(changed, status=evolve(changed.status, revisions=found))


def test_a_template_that_comes_again_moves_to_the_end_and_the_oldest_go() -> None:
    pool = after(make.rollout_pool())
    first = pool.spec.allocation
    assert [r.number for r in pool.status.revisions] == [1]
    assert after(pool, replicas=7).status.revisions is pool.status.revisions, "the size is no part of the template"
    pool = after(pool, allocation=evolve(first, cpus_per_task=63))
    assert pool.status.revisions[-1].template["allocation"]["cpusPerTask"] == 63
    pool = after(pool, allocation=first)
    assert [r.number for r in pool.status.revisions] == [2, 3]
    for n in range(20):
        pool = after(pool, restarted_at=NOW + timedelta(seconds=n))
    assert len(pool.status.revisions) == KEPT
    assert pool.status.revisions[-1].number == 23
    assert "restartedAt" in pool.status.revisions[-1].template


def test_a_restart_is_a_change_of_the_template_and_its_absence_none() -> None:
    """The hash of a pool without a restart is that of the releases before, so an upgrade replaces nothing."""
    for pool, before in ((make.rollout_pool(), "964b423a0eb0a0d5"), (make.inference_pool(), "822dca05593223e6")):
        assert template_hash(pool) == before
        restarted = evolve(pool, spec=evolve(pool.spec, restarted_at=NOW))
        assert template_hash(restarted) != template_hash(pool)
        assert template_hash(evolve(restarted, spec=evolve(restarted.spec, restarted_at=None))) == template_hash(pool)
