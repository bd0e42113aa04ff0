"""Autoscaler: decides the size of a pool from the demand on the pool. Pure.

The rules are those of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2). The rules for bursts and for the size zero
are those of Knative's autoscaler.

- Each metric requests ceil(total / capacity of one replica). This equals Kubernetes' ceil(current x metric / target).
  Within a tolerance of 0.1 a metric requests no change. The highest request of all metrics counts. Replicas that are
  submitted but not ready count as current, so that no replica is requested twice.
- The size grows to the lowest request within the window of `scaleUp`, and shrinks to the highest request within the
  window of `scaleDown`. Policies limit the speed of both changes.
- The size leaves zero at the first demand, and becomes zero only after `idleTimeoutSeconds` without work.
- A request of at least twice the size is a panic. For PANIC_SECONDS after a panic, the size grows without waiting for
  the window, and does not shrink.
- The pool does not shrink while a metric is unknown or incomplete. After a restart the pool shrinks only once the
  server has measured the demand for a whole window, and for the period of every policy of `scaleDown`.
- The pool changes between growing and shrinking at most FLAP_BUDGET times within FLAP_WINDOW_SECONDS. This limit never
  delays growth. So the pool shrinks only if the limit also has room for the growth that may follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from rollyard.core.clock import as_datetime
from rollyard.kinds.autoscaling import (
    MAX_PERIOD_SECONDS,
    MAX_WINDOW_SECONDS,
    Autoscaling,
    ScalingPolicy,
    ScalingRecord,
    ScalingRules,
)
from rollyard.kinds.base import Reason, evolve

TOLERANCE = 0.1
PANIC_THRESHOLD, PANIC_SECONDS = 2, 60.0
FLAP_BUDGET, FLAP_WINDOW_SECONDS = 6, 3600.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a pool's demand."""

    name: str
    total: float | None
    """Sum over the whole pool, including waiting work; None while the sum is unknown."""
    target: float
    """Capacity of one replica."""
    complete: bool = True
    """False if the real total may be higher, because a replica has not reported."""

    @property
    def missing(self) -> bool:
        return self.total is None or not self.complete

    def needs(self, current: int) -> int | None:
        """Return the number of replicas that this metric requests by itself; None while the metric is unknown."""
        if self.total is None:
            return None
        if current > 0 and abs(self.total / (current * self.target) - 1) <= TOLERANCE + 1e-9:
            return current
        return math.ceil(self.total / self.target - 1e-9)  # 1.1 / 0.1 is slightly more than 11

    def describe(self) -> str:
        if self.total is None:
            return f"{self.name} unknown"
        return f"{self.name} {'' if self.complete else 'at least '}{self.total:.4g}, target {self.target:.4g} each"


@dataclass(frozen=True, slots=True)
class SlidingMax:
    """Highest value within a window of time, so that a scaler does not follow every dip.

    The samples are those that may be the highest. A sample is dropped when a later sample is equal or higher."""

    samples: tuple[tuple[float, int], ...] = ()
    """(Unix seconds, value), with rising times and falling values."""

    def add(self, now: float, value: int, keep_seconds: float) -> SlidingMax:
        """Add a sample, and drop samples older than `keep_seconds`."""
        kept = tuple((at, v) for at, v in self.samples if v > value and at > now - keep_seconds)
        return SlidingMax((*kept, (now, value)))

    def max_since(self, after: float, default: int) -> int:
        """Return the highest sample that is later than `after`; `default` if there is no such sample."""
        return next((value for at, value in self.samples if at > after), default)


@dataclass(frozen=True, slots=True)
class ScalerMemory:
    """State that each call of `autoscale` returns for the next call. If the state is lost, the pool shrinks only once the
    windows are full again."""

    since: float
    """Unix seconds since which the state is complete."""
    requested: SlidingMax = field(default_factory=SlidingMax)
    """Sizes that were requested."""
    requested_negated: SlidingMax = field(default_factory=SlidingMax)
    """Negated requested sizes: their maximum gives the lowest request."""
    changes: tuple[tuple[float, int], ...] = ()
    """(Unix seconds, difference of the size) for each noticed change of the size."""
    size: int | None = None
    """Size at the last call."""
    panic_until: float = -math.inf

    @classmethod
    def begin(cls, now: float, *, new: bool) -> ScalerMemory:
        """Return an empty state. `new`: the pool was never scaled, so there are no earlier requests."""
        return cls(since=-math.inf if new else now)

    def observe(self, now: float, size: int, wanted: int) -> ScalerMemory:
        """Add the current size and the requested one."""
        changes = tuple(change for change in self.changes if change[0] > now - MAX_PERIOD_SECONDS)
        if self.size not in (None, size):
            changes = (*changes, (now, size - (self.size or 0)))
        return replace(
            self,
            requested=self.requested.add(now, wanted, MAX_WINDOW_SECONDS),
            requested_negated=self.requested_negated.add(now, -wanted, MAX_WINDOW_SECONDS),
            changes=changes,
            size=size,
            panic_until=now + PANIC_SECONDS if wanted >= PANIC_THRESHOLD * max(1, size) else self.panic_until,
        )

    def changed(self, since: float) -> int:
        """Return the difference between the present size and the size at `since` (Unix seconds)."""
        return sum(by for at, by in self.changes if at > since)


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    desired: int
    message: str
    """Numbers that led to the decision."""
    record: ScalingRecord = field(default_factory=ScalingRecord)
    """Record for the pool's status. It is written together with the decision."""
    memory: ScalerMemory | None = None
    """State for the next call."""
    limit: Reason | None = None


@dataclass(frozen=True, slots=True)
class _Decision:
    """Input of one decision."""

    bounds: Autoscaling
    memory: ScalerMemory
    record: ScalingRecord
    size: int
    """Present size, moved into the bounds."""
    wanted: int
    """Requested size, moved into the bounds."""
    now: float


def autoscale(
    bounds: Autoscaling,
    memory: ScalerMemory,
    record: ScalingRecord,
    metrics: Sequence[Metric],
    *,
    current: int,
    now: float,
) -> ScaleDecision:
    """Decide a pool's next size. `current`: the last decided size; some of its replicas may not have started."""
    low, high = bounds.min_replicas, bounds.max_replicas
    size = min(max(current, low), high)
    asked = max((need for m in metrics if (need := m.needs(size)) is not None), default=0)
    unknown = [m.name for m in metrics if m.missing and asked < size]
    wanted = size if unknown else min(max(asked, low), high)
    memory = memory.observe(now, current, wanted)
    record = evolve(record, idle_since=_idle_since(metrics, record, now))
    case = _Decision(bounds, memory, record, size, wanted, now)
    desired, limit = _up(case) if wanted > size else _down(case) if wanted < size else (size, None)
    if unknown:
        limit = Reason(
            "MetricUnknown",
            f"{', '.join(unknown)}: some allocations have not reported it; none is given back until they do",
        )
    elif limit is None and asked != wanted:
        limit = _limit_of(asked, bounds)
    numbers = f"{'; '.join(m.describe() for m in metrics)}; the demand needs {asked}, bounds {low} to {high}"
    return ScaleDecision(desired, numbers, _with_direction(record, size, desired, now), memory, limit)


def _idle_since(metrics: Sequence[Metric], record: ScalingRecord, now: float) -> datetime | None:
    """Time since which the known metrics show no work; None while a metric shows work, or all are unknown."""
    totals = [m.total for m in metrics if m.total is not None]
    return (record.idle_since or as_datetime(now)) if totals and not any(totals) else None


def _limit_of(asked: int, bounds: Autoscaling) -> Reason:
    if asked > bounds.max_replicas:
        return Reason(
            "TooManyReplicas",
            f"the demand needs {asked} allocations, but spec.autoscaling.maxReplicas is {bounds.max_replicas}",
        )
    return Reason(
        "TooFewReplicas",
        f"the demand needs {asked} allocations, but spec.autoscaling.minReplicas is {bounds.min_replicas}",
    )


# growth


def _up(case: _Decision) -> tuple[int, Reason | None]:
    rules, size, wanted, now = case.bounds.behavior.scale_up, case.size, case.wanted, case.now
    window = 0 if now < case.memory.panic_until else rules.stabilization_window_seconds
    least = -case.memory.requested_negated.max_since(now - window, -wanted)
    if now - case.memory.since < window:
        least = size  # earlier requests are unknown
    steady = max(size or 1, min(least, wanted))
    most = max(size, _bounded_by_policies(rules, case, _highest_by_policy, (max, min), steady))
    if most < steady:
        return most, Reason(
            "ScaleUpLimit",
            f"the demand needs {steady} allocations, but spec.autoscaling.behavior.scaleUp allows {most} now",
        )
    if steady < wanted:
        return steady, Reason(
            "ScaleUpStabilized",
            f"the demand needs {wanted} allocations, but has not needed as many for all of the last {window} s",
        )
    return steady, None


def _highest_by_policy(start: int, policy: ScalingPolicy) -> int:
    if policy.type == "Count":
        return start + policy.value
    return math.ceil(max(1, start) * (100 + policy.value) / 100)


# shrinking


def _down(case: _Decision) -> tuple[int, Reason | None]:
    rules, size, wanted, now = case.bounds.behavior.scale_down, case.size, case.wanted, case.now
    window = rules.stabilization_window_seconds
    if now < case.memory.panic_until:
        return size, Reason(
            "Panic", f"the demand needs {wanted} allocations, but its last burst is less than {PANIC_SECONDS:.0f} s ago"
        )
    if now - case.memory.since < max([window, *(p.period_seconds for p in rules.policies)]):
        return size, Reason(
            "WindowNotFull",
            f"the demand needs {wanted} allocations, but the server has not yet measured it for a whole window",
        )
    highest = min(size, case.memory.requested.max_since(now - window, wanted))
    steady = max(highest, 0 if _idle_long_enough(case) else 1)
    if steady == size and highest < size:
        seconds = case.bounds.idle_timeout_seconds
        return size, Reason("NotIdleLongEnough", f"the last allocation is given back after {seconds} s without work")
    if steady == size:
        return size, Reason(
            "ScaleDownStabilized",
            f"the demand needs {wanted} allocations, but needed {size} within the last {window} s",
        )
    if len(turns := _recent(case.record, now)) + 2 > FLAP_BUDGET and case.record.direction == "Up":
        return size, Reason(
            "FlapBudget",
            f"the demand needs {steady} allocations, but the direction changed {len(turns)} times in the last hour",
        )
    least = max(steady, min(size, _bounded_by_policies(rules, case, _lowest_by_policy, (min, max), steady)))
    if least > steady:
        return least, Reason(
            "ScaleDownLimit",
            f"the demand needs {steady} allocations, but spec.autoscaling.behavior.scaleDown allows {least} now",
        )
    return steady, None


def _idle_long_enough(case: _Decision) -> bool:
    since = case.record.idle_since
    return since is not None and case.now - since.timestamp() >= case.bounds.idle_timeout_seconds


def _lowest_by_policy(start: int, policy: ScalingPolicy) -> int:
    if policy.type == "Count":
        return start - policy.value
    return math.floor(start * (100 - policy.value) / 100)


# growth and shrinking


def _bounded_by_policies(
    rules: ScalingRules,
    case: _Decision,
    step: Callable[[int, ScalingPolicy], int],
    pick: tuple[Callable[[list[int]], int], Callable[[list[int]], int]],
    unlimited: int,
) -> int:
    """Return the size that the policies allow. A policy limits the change from the size at the start of its period.

    `pick`: functions that return the size with the largest and with the smallest change.
    """
    if rules.select_policy == "Disabled":
        return case.size
    if not rules.policies:
        return unlimited
    starts = [case.size - case.memory.changed(case.now - p.period_seconds) for p in rules.policies]
    sizes = [step(start, policy) for start, policy in zip(starts, rules.policies, strict=True)]
    furthest, nearest = pick
    return furthest(sizes) if rules.select_policy == "Max" else nearest(sizes)


def _recent(record: ScalingRecord, now: float) -> list[datetime]:
    return [turn for turn in record.turns if turn.timestamp() > now - FLAP_WINDOW_SECONDS]


def _with_direction(record: ScalingRecord, size: int, desired: int, now: float) -> ScalingRecord:
    """Return the record with the direction of this decision, if the size changes."""
    if desired == size:
        return record
    direction: Literal["Up", "Down"] = "Up" if desired > size else "Down"
    if record.direction in (None, direction):
        return evolve(record, direction=direction)
    return evolve(record, direction=direction, turns=[*_recent(record, now), as_datetime(now)])
