"""A rollout's demands on the weights: versions it may begin with, their greatest age, and the decision of `step`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollyard.kinds.base import evolve
from rollyard.kinds.failure_table import WEIGHTS_STALE
from rollyard.kinds.rollout import Stage, Status, WeightsConstraint
from rollyard.kinds.weights import WeightsOperation
from rollyard.server.rollouts.step import (
    MAX_OUTDATED,
    Ended,
    Granted,
    Lost,
    Outdated,
    Requeued,
    RunStored,
    StopHolder,
    step,
)
from rollyard.server.routing.staleness import ServedVersions, allowed_versions, check, why_waiting
from rollyard.store.base import BlobRef, GroupVersions, RolloutRecord, VersionBound
from tests.support import make

SAME = WeightsConstraint(same=True)
BLOB = BlobRef("p", 0, 1, "s")


def served(*ready: str, current: str = "v3", **endpoints: str) -> ServedVersions:
    """A pool that has served v1, v2, v3, in this order."""
    return ServedVersions(make.weights("v1", "v2", "v3", current=current), endpoints, frozenset(ready))


def record(**more: Any) -> RolloutRecord:
    return make.rollout(**({"group": "g"} | more))


def leased(**more: Any) -> RolloutRecord:
    return step(record(**more), Granted(2.0, "u/i", "node", {"policy": "e"}, "v2"))[0]


def demanding(demand: WeightsConstraint, version: str | None = None, **more: Any) -> VersionBound:
    found = VersionBound("r", "g", Stage.INIT, version is not None, {"policy": "e"}, demand, version)
    return replace(found, **more)


@pytest.mark.parametrize(
    ("asks", "group", "ready", "may"),
    [
        ({}, (), "v2 v3", None),
        ({"min_weights_version": "v2"}, (), "v1 v2 v3", "v2 v3"),
        ({"min_weights_version": "v3"}, (), "v1 v2", ""),
        ({"min_weights_version": "v9"}, (), "v1 v2 v3", ""),
        ({"weights": SAME}, (), "v2 v3", "v3"),
        ({"weights": SAME}, (), "v2", "v2"),
        ({"weights": SAME}, (), "", ""),
        ({"weights": SAME}, ("v2",), "v2 v3", "v2"),
        ({"weights": SAME}, ("v1",), "v2 v3", ""),
        ({"weights": SAME, "min_weights_version": "v3"}, ("v2",), "v2 v3", ""),
        ({"weights": SAME, "min_weights_version": "v2"}, (), "v1 v2", "v2"),
        ({"weights": WeightsConstraint(max_staleness=0)}, (), "v2 v3", "v2 v3"),
    ],
)
def test_what_it_may_begin_with(asks: dict[str, Any], group: tuple[str, ...], ready: str, may: str | None) -> None:
    found = allowed_versions(record(**asks), GroupVersions(begun=frozenset(group)), served(*ready.split()))
    assert found == (None if may is None else frozenset(may.split()))


@pytest.mark.parametrize(
    ("limit", "start", "behind"), [(2, "v1", None), (1, "v1", 2), (0, "v2", 1), (0, "v3", None), (0, "unknown", None)]
)
def test_what_has_fallen_too_far_behind(limit: int, start: str, behind: int | None) -> None:
    found = check(demanding(WeightsConstraint(max_staleness=limit), start), GroupVersions(), served("v3"))
    assert (found is None) == (behind is None)
    if found is not None:
        assert not found.ends_rollout
        assert found.why is WEIGHTS_STALE
        assert f"{behind} versions behind v3" in found.message


@pytest.mark.parametrize(
    ("asks", "group", "now", "reason"),
    [
        (demanding(SAME, "v2"), GroupVersions(), served("v2", e="v2"), None),
        (demanding(SAME, "v2"), GroupVersions(), served("v3", e=""), None),
        (demanding(SAME, "v2"), GroupVersions(), served("v3", e="v3"), ("WeightsVersionGone", False)),
        (demanding(SAME, "v2", stage=Stage.EVAL), GroupVersions(), served("v3", e="v3"), None),
        (demanding(SAME), GroupVersions(sampled=frozenset({"v2"})), served("v3"), ("WeightsVersionGone", True)),
        (demanding(SAME), GroupVersions(sampled=frozenset({"v2"})), served("v2", "v3"), None),
        (demanding(SAME), GroupVersions(sampled=frozenset({"v3"})), served(), None),
        (demanding(SAME), GroupVersions(begun=frozenset({"v2"})), served("v3"), None),
        (demanding(SAME, stage=Stage.EVAL), GroupVersions(sampled=frozenset({"v2"})), served("v3"), None),
        (demanding(WeightsConstraint(max_staleness=5), "v2"), GroupVersions(), served("v3", e="v3"), None),
    ],
)
def test_a_group_of_one_version(
    asks: VersionBound, group: GroupVersions, now: ServedVersions, reason: tuple[str, bool] | None
) -> None:
    found = check(asks, group, now)
    assert (None if found is None else (found.why.reason, found.ends_rollout)) == reason


def test_a_version_that_is_coming_or_was_there_a_moment_ago_is_not_gone() -> None:
    now = served("v1", current="v1")
    assert now.is_gone("v2")
    assert not replace(now, recently_served=frozenset({"v2"})).is_gone("v2")
    assert not replace(now, recently_served=None).is_gone("v2"), "the server has just started"
    assert not ServedVersions().is_gone("v2"), "the pool has not been looked at"
    target = now.weights.history[1]
    for phase, gone in (("Updating", False), ("Failed", True)):
        operation = WeightsOperation(target=target, phase=phase, started_at=target.since)
        weights = evolve(now.weights, operation=operation)
        assert replace(now, weights=weights).is_gone("v2") == gone


def test_what_it_waits_for_is_said() -> None:
    queued = record(min_weights_version="v3")
    assert why_waiting(queued, "policy", served("v3")) is None
    assert why_waiting(record(), "policy", served()) is None
    assert why_waiting(leased(min_weights_version="v9"), "policy", served()) is None
    late = why_waiting(queued, "policy", served("v2", current="v2"))
    assert late == "no endpoint of InferencePool policy that serves 'v3' or a later version is ready; it serves v2"
    unknown = why_waiting(record(min_weights_version="v9"), "policy", served("v3"))
    assert unknown == "InferencePool policy has not served version 'v9' yet; it serves v3"


def test_what_waits_for_a_skipped_version_says_what_one_can_do() -> None:
    now = evolve(served("v3", current="v3").weights, history=[])
    skipped = why_waiting(record(min_weights_version="v2"), "policy", ServedVersions(now))
    assert skipped == (
        "InferencePool policy has not served version 'v2', and serves v3. A skipped version has no place in the order: "
        "serve 'v2' after all, or ask for a later one; `rollyard weights follow --each` skips none"
    )
    for other in ("v4", "v3", "step2", "v"):
        told = why_waiting(record(min_weights_version=other), "policy", ServedVersions(now))
        assert told == f"InferencePool policy has not served version {other!r} yet; it serves v3"


# step


def test_what_is_outdated_begins_anew_and_it_costs_no_retry() -> None:
    held = leased(weights=WeightsConstraint(max_staleness=0))
    assert held.weights_version == "v2"
    after, effects = step(held, Outdated(3.0, held.fence, WEIGHTS_STALE, "too old"))
    assert (after.status, after.attempt, after.faults, after.losses, after.outdated) == (Status.QUEUED, 2, 0, 0, 1)
    assert (after.weights_version, after.holder) == (None, None)
    assert after.error is not None
    assert after.error.reason == "WeightsStale"
    assert effects == (StopHolder("u/i", held.fence), Requeued(3.0))


def test_what_is_sampled_is_not_outdated_any_more() -> None:
    scored = step(leased(), RunStored(3.0, 1, BLOB, BLOB))[0]
    assert step(scored, Outdated(4.0, 1, WEIGHTS_STALE, "too old")) == (scored, ())
    lost = step(scored, Lost(5.0, 1, "Expired"))[0]
    again = step(lost, Granted(6.0, "u/j", "node", {}))[0]
    assert again.weights_version == "v2", "EVAL samples nothing"


def test_what_is_always_too_slow_ends() -> None:
    held = leased(outdated=MAX_OUTDATED)
    after, effects = step(held, Outdated(3.0, held.fence, WEIGHTS_STALE, "too old"))
    assert (after.status, after.reward) == (Status.CANCELLED, None)
    assert after.error is not None
    assert f"started {MAX_OUTDATED + 1} times" in after.error.message
    assert effects == (StopHolder("u/i", held.fence), Ended())


@pytest.mark.parametrize(
    ("demand", "versions", "kept"),
    [
        (SAME, {"v2"}, True),
        (SAME, set(), True),
        (SAME, {"v2", "v3"}, False),
        (SAME, {"v3"}, False),
        (None, {"v2", "v3"}, True),
        (WeightsConstraint(max_staleness=1), {"v2", "v3"}, True),
    ],
)
def test_a_run_across_an_update_counts_only_where_that_is_allowed(
    demand: WeightsConstraint | None, versions: set[str], kept: bool
) -> None:
    held = leased(weights=demand)
    after, _ = step(held, RunStored(3.0, held.fence, BLOB, BLOB, frozenset(versions)))
    assert (after.stage is Stage.EVAL) == kept
    if not kept:
        assert (after.status, after.result, after.outdated) == (Status.QUEUED, None, 1)
