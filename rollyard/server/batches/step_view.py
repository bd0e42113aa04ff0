"""View of a training step for its users. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import quantiles

from rollyard.kinds.metric_history import TrainingStep
from rollyard.store.batch_records import StepRecord


def step_view(record: StepRecord) -> TrainingStep:
    used, unused = record.used, record.unused
    judged, rewards = used.rollouts + unused.rollouts, used.rewards + unused.rewards
    mean = _share(used.rewards, used.rollouts)
    return TrainingStep(
        batch=record.batch,
        step=record.step,
        began_at=record.began_at,
        ended_at=record.ended_at,
        groups=used.groups,
        rollouts=used.rollouts,
        reward_mean=mean,
        reward_std=None if mean is None else _rounded(math.sqrt(_variance(used.squares, used.rewards, used.rollouts))),
        reward_quartiles=_quartiles(used.counts),
        group_reward_std=_share(used.spreads, used.groups),
        judged_reward_mean=_share(rewards, judged),
        judged_rollouts=judged,
        informative_share=_share(record.differing, record.compared),
        differing=record.differing,
        compared=record.compared,
        all_low=record.all_low,
        all_high=record.all_high,
        other=record.other,
        faulty=record.faulty,
        wasted_tokens=record.wasted_tokens,
        staleness_mean=_share(record.staleness, used.groups),
        staleness_max=record.most_stale if used.groups else None,
        tokens_mean=_share(used.tokens, used.rollouts),
        turns_mean=_share(used.turns, used.rollouts),
        seconds_mean=_share(used.seconds, used.rollouts),
        tool_calls_mean=_share(used.tool_calls, used.rollouts),
    )


def _quartiles(counts: Sequence[tuple[float, int]]) -> list[float] | None:
    """Return the least value, the quartiles and the greatest value, interpolated; None without values."""
    values = [value for value, count in counts for _ in range(count)]
    if len(values) < 2:
        return [values[0]] * 5 if values else None
    return [_rounded(one) for one in (values[0], *quantiles(values, n=4, method="inclusive"), values[-1])]


def _variance(squares: float, total: float, count: int) -> float:
    return max(0.0, squares / count - (total / count) ** 2)


def _share(above: float, below: float) -> float | None:
    return _rounded(above / below) if below else None


def _rounded(value: float) -> float:
    return round(value, 6)
