"""Usage of pools over a time, from the times of their jobs and from hourly sums of their rollouts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.usage import JobTime, UsageRow, UsageTotals, UsageView
from rollyard.store.usage_hours import HOUR, UsageHour


class _Key(NamedTuple):
    namespace: str | None = None
    pool_kind: str | None = None
    pool: str | None = None
    week: str | None = None


def usage(jobs: Iterable[JobTime], hours: Iterable[UsageHour], by: str, since: float, until: float) -> UsageView:
    """Return the usage between two times. `by`: pool, namespace or week. `since`: a whole hour, because rollouts are counted
    by the hour."""
    key_of = _KEYS[by]
    found: defaultdict[_Key, _Sums] = defaultdict(_Sums)
    total = _Sums()
    for job in jobs:
        for start, end in _weeks(max(job.start, since), min(job.end, until)):
            for sums in (found[key_of(job.namespace, job.pool_kind, job.pool, start)], total):
                sums.gpu_seconds += job.gpus * (end - start)
                sums.cpu_seconds += job.cpus * (end - start)
    for hour in hours:
        if since <= hour.start < until:
            key = key_of(hour.namespace, RolloutPool.__name__, hour.pool, hour.start)
            for sums in (found[key], total):
                sums.add(hour)
    rows = [UsageRow(**key._asdict(), **sums.totals()) for key, sums in sorted(found.items())]
    return UsageView(since=since, until=until, by=by, rows=rows, total=UsageTotals(**total.totals()))


@dataclass(slots=True)
class _Sums:
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    rollouts: int = 0
    scored: int = 0

    def add(self, hour: UsageHour) -> None:
        self.prompt_tokens += hour.prompt_tokens
        self.sampled_tokens += hour.sampled_tokens
        self.rollouts += hour.rollouts
        self.scored += hour.scored

    def totals(self) -> dict[str, float | int | None]:
        gpu_hours, cpu_hours = self.gpu_seconds / HOUR, self.cpu_seconds / HOUR
        return {
            "gpu_hours": gpu_hours,
            "cpu_hours": cpu_hours,
            "prompt_tokens": self.prompt_tokens,
            "sampled_tokens": self.sampled_tokens,
            "rollouts": self.rollouts,
            "scored": self.scored,
            "scored_per_gpu_hour": self.scored / gpu_hours if gpu_hours else None,
            "scored_per_cpu_hour": self.scored / cpu_hours if cpu_hours else None,
        }


_KEYS: dict[str, Callable[[str, str, str, float], _Key]] = {
    "pool": lambda namespace, kind, pool, at: _Key(namespace, kind, pool),
    "namespace": lambda namespace, kind, pool, at: _Key(namespace),
    "week": lambda namespace, kind, pool, at: _Key(week=week_of(at)),
}


def week_of(at: float) -> str:
    """Return the week of a time (Unix seconds), such as 2026-W49."""
    year, week, _ = datetime.fromtimestamp(at, UTC).isocalendar()
    return f"{year}-W{week:02}"


def _weeks(start: float, end: float) -> Iterator[tuple[float, float]]:
    """Cut a time at the beginnings of weeks. An empty time yields nothing."""
    while start < end:
        day = datetime.fromtimestamp(start, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        following = (day + timedelta(days=7 - day.weekday())).timestamp()
        yield start, min(end, following)
        start = following
