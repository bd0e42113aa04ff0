"""`judge(filter, min_usable, n, ended) -> verdict`: whether a group is informative, as soon as this is certain.

Only rollouts with a reward count. So a rollout that ended `Failed`, `InfraFailed` or `Cancelled` does not make a group
uninformative. A group with too few rewards is faulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rollyard.kinds.batch import BatchFilter
from rollyard.store.batch_records import EndedRollout


class Verdict(Enum):
    """Verdict on a group. `OPEN`: the verdict depends on rollouts that have not ended."""

    OPEN = "open"
    INFORMATIVE = "informative"
    ALL_LOW = "all_low"
    ALL_HIGH = "all_high"
    OTHER = "other"
    FAULTY = "faulty"


def judge(filter: BatchFilter, min_usable: int, n: int, ended: Sequence[EndedRollout]) -> Verdict:
    rewards = [r.reward for r in ended if r.reward is not None]
    left = n - len(ended)
    if len(rewards) + left < min_usable:
        return Verdict.FAULTY
    low, high = _mean_bounds(filter, rewards, left)
    if filter.min_mean is not None and high < filter.min_mean:
        return Verdict.ALL_LOW
    if filter.max_mean is not None and low > filter.max_mean:
        return Verdict.ALL_HIGH
    within = (filter.min_mean is None or low >= filter.min_mean) and (
        filter.max_mean is None or high <= filter.max_mean
    )
    differ = filter.kind == "none" or (bool(rewards) and min(rewards) != max(rewards))
    if within and differ and len(rewards) >= min_usable:
        return Verdict.INFORMATIVE
    if left:
        return Verdict.OPEN
    return _uniform(filter, rewards[0])


def _mean_bounds(filter: BatchFilter, rewards: Sequence[float], left: int) -> tuple[float, float]:
    """Return the least and the greatest mean reward that the group can have at its end. Any of the `left` unfinished
    rollouts may end without a reward."""
    total, count = sum(rewards), len(rewards)
    now = [total / count] if count else []
    if not left:
        return (now[0], now[0]) if now else (-float("inf"), float("inf"))
    least, greatest = filter.reward_range or (-float("inf"), float("inf"))
    low = min([*now, (total + left * least) / (count + left)])
    high = max([*now, (total + left * greatest) / (count + left)])
    return low, high


def _uniform(filter: BatchFilter, reward: float) -> Verdict:
    """Return the verdict on a group whose rewards are all equal."""
    least, greatest = filter.reward_range or (0.0, 0.0)
    if reward <= least:
        return Verdict.ALL_LOW
    return Verdict.ALL_HIGH if filter.reward_range is None or reward >= greatest else Verdict.OTHER
