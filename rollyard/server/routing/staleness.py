"""The weights versions from which a rollout may be sampled, and the check whether its version is too old. Pure.

A rollout can request a minimum version, one version for its whole group, or a version that is not too far behind the
pool's current version. Only the endpoint of the role `policy` counts. Other roles, such as a judge, may change weights
at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rollyard.kinds.failure_table import WEIGHTS_GONE, WEIGHTS_STALE, Ending
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_pool import POLICY_ROLE
from rollyard.kinds.weights import WeightsStatus
from rollyard.store.base import GroupVersions, RolloutRecord, VersionBound
from rollyard.wire.endpoint import Endpoint

_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The weights of the policy's InferencePool, and the versions that the pool's endpoints serve now."""

    weights: WeightsStatus = field(default_factory=WeightsStatus)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Endpoint id -> version that the endpoint serves."""
    ready: frozenset[str] = frozenset()
    """Versions that new rollouts can get."""
    recently_served: frozenset[str] | None = frozenset()
    """Versions that new rollouts could get a short time ago; None while these versions are unknown."""

    @property
    def minimum_versions(self) -> frozenset[str]:
        """Minimum versions that new rollouts can request now, because a ready endpoint satisfies them."""
        weights = self.weights
        return frozenset(r.version for r in weights.history if any(weights.at_least(v, r.version) for v in self.ready))

    @property
    def newest(self) -> str | None:
        known = [r.version for r in self.weights.history if r.version in self.ready]
        return known[-1] if known else min(self.ready, default=None)

    def is_gone(self, version: str) -> bool:
        """Whether no endpoint that takes work serves this version now or served it a short time ago. False for the
        current version and for the target of a running update. False while the current version or `recently_served` is
        unknown."""
        current, operation = self.weights.current, self.weights.operation
        if current is None or self.recently_served is None:
            return False  # the server or the pool has just started, and reports may still be missing
        if operation is not None and operation.is_running and operation.target.version == version:
            return False
        return version != current.version and version not in self.ready | self.recently_served


@dataclass(frozen=True, slots=True)
class StalenessVerdict:
    """Decision that the rollout must begin again, or that it must end."""

    why: Ending
    message: str
    ends_rollout: bool = False


def allowed_versions(record: RolloutRecord, group: GroupVersions, served: ServedVersions) -> frozenset[str] | None:
    """Versions with which the rollout may begin; None for any."""
    if record.weights is None and record.min_weights_version is None:
        return None
    may = served.ready
    if (least := record.min_weights_version) is not None:
        may = frozenset(v for v in may if served.weights.at_least(v, least))
    if record.weights is not None and record.weights.same:
        # The first rollout of a group takes the newest version if it may, because an update may soon remove older ones.
        fixed = group.fixed or (served.newest if served.newest in may else min(may, default=None))
        may &= {fixed}
    return may


def allow_at_least(least: str | None, weights: WeightsStatus) -> Callable[[Endpoint], bool] | None:
    """Filter for endpoints that serve this version or a later one; None for any. `weights`: weights of their pool."""
    return None if least is None else lambda endpoint: weights.at_least(endpoint.weights_version, least)


def allow_under_way(record: RolloutRecord, role: str, weights: WeightsStatus) -> Callable[[Endpoint], bool] | None:
    """Filter for endpoints whose weights a running rollout may use after a move; None for any."""
    if role != POLICY_ROLE:
        return None
    if record.weights is not None and record.weights.same:
        return lambda endpoint: endpoint.weights_version == record.weights_version
    return allow_at_least(record.min_weights_version, weights)


def check(record: VersionBound, group: GroupVersions, served: ServedVersions) -> StalenessVerdict | None:
    """Verdict on a rollout's weights; None if the weights still match the request."""
    if record.stage is Stage.EVAL:
        return None  # all its tokens are already sampled
    if record.leased:
        return _check_too_old(record, served) or _check_changed(record, served)
    fixed = group.fixed
    if record.weights.same and fixed is not None and group.sampled and served.is_gone(fixed):
        message = f"its group was sampled from {fixed}, which no endpoint serves any more"
        return StalenessVerdict(WEIGHTS_GONE, message, ends_rollout=True)
    start = record.weights_version  # a queued rollout has one if it has saved turns
    if record.weights.same and start is not None and served.is_gone(start):
        return StalenessVerdict(WEIGHTS_GONE, f"its saved turns are from {start}, which no endpoint serves any more")
    return _check_too_old(record, served)


def _check_too_old(record: VersionBound, served: ServedVersions) -> StalenessVerdict | None:
    limit, start = record.weights.max_staleness, record.weights_version
    if limit is None or start is None:
        return None
    behind, current = served.weights.behind(start), served.weights.current
    if behind <= limit or current is None:
        return None
    message = f"it started with {start}, which is {behind} versions behind {current.version} (max_staleness {limit})"
    return StalenessVerdict(WEIGHTS_STALE, message)


def _check_changed(record: VersionBound, served: ServedVersions) -> StalenessVerdict | None:
    """Verdict for a rollout whose group must have one version, if its endpoint has changed weights during the attempt."""
    start, now = record.weights_version, served.versions.get(record.endpoints.get(POLICY_ROLE, ""), "")
    if not record.weights.same or not start or now in ("", start):
        return None
    return StalenessVerdict(WEIGHTS_GONE, f"its group is sampled from {start}, but its endpoint now serves {now}")


def why_waiting(record: RolloutRecord, pool: str, served: ServedVersions) -> str | None:
    """Return why no endpoint serves the minimum version of a queued rollout, or a later version. None if an endpoint
    does, or if the rollout does not wait for a minimum version.

    `pool`: name of the InferencePool.
    """
    least = record.min_weights_version
    if (
        record.status is not Status.QUEUED
        or record.stage is Stage.EVAL
        or least is None
        or least in served.minimum_versions
    ):
        return None
    return why_none(pool, least, served)


def why_none(pool: str, least: str, served: ServedVersions) -> str:
    """Return why no endpoint serves version `least` or a later version. `pool`: name of the InferencePool."""
    current = served.weights.current
    now = f"it serves {current.version}" if current is not None else "its version is not known yet"
    if served.weights.record(least) is None:
        if current is not None and _comes_after(current.version, least):
            return (
                f"InferencePool {pool} has not served version {least!r}, and serves {current.version}. A skipped version "
                f"has no place in the order: serve {least!r} after all, or ask for a later one; "
                "`rollyard weights follow --each` skips none"
            )
        return f"InferencePool {pool} has not served version {least!r} yet; {now}"
    return f"no endpoint of InferencePool {pool} that serves {least!r} or a later version is ready; {now}"


def _comes_after(version: str, other: str) -> bool:
    """Whether both names end in a number behind the same words, and that of `version` is the higher one."""
    found, than = _NUMBERED.fullmatch(version), _NUMBERED.fullmatch(other)
    return found is not None and than is not None and found[1] == than[1] and int(found[2]) > int(than[2])
