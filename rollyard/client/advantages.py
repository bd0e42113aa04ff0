"""Advantages of groups of rewards, as plain functions on arrays.

Each function takes rewards of shape [n] (one group) or [groups, n], and returns float64 of the same shape. NaN or None
marks a rollout without a reward, for example after InfraFailed. Baselines leave such a rollout out, and its advantage
is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Advantage = Callable[[ArrayLike], NDArray[np.float64]]


def grpo(rewards: ArrayLike, epsilon: float = 1e-4) -> NDArray[np.float64]:
    """(r - mean) / (std + epsilon) of the group. DeepSeekMath, arXiv 2402.03300, section 4.1.2.

    The standard deviation has the divisor n - 1, as in TRL and verl.
    """
    r, count, deviations = _deviations(rewards)
    variance = np.nansum(deviations**2, axis=-1, keepdims=True) / np.maximum(count - 1, 1)
    return _zero_where_missing(r, deviations / (np.sqrt(variance) + epsilon))


def mean_baseline(rewards: ArrayLike) -> NDArray[np.float64]:
    """r - mean of the group, without a division by the spread. Dr. GRPO, arXiv 2503.20783, section 3.2."""
    r, _, deviations = _deviations(rewards)
    return _zero_where_missing(r, deviations)


def leave_one_out(rewards: ArrayLike) -> NDArray[np.float64]:
    """r - mean of the other rewards of the group. RLOO, arXiv 2402.14740, equation 8.

    If no other rollout of the group has a reward, the advantage is 0.
    """
    r, count, deviations = _deviations(rewards)
    return _zero_where_missing(r, np.where(count > 1, deviations * count / np.maximum(count - 1, 1), 0.0))


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "mean_baseline": mean_baseline, "leave_one_out": leave_one_out}
"""The functions by name, for `training_rows.collate`."""


def group_advantages(rewards: Sequence[float | None] | NDArray[np.float64], kind: str = "grpo") -> NDArray[np.float64]:
    """Return the advantages of one group, by the function named `kind`. Raises ValueError for an unknown name."""
    if kind not in ADVANTAGES:
        raise ValueError(f"unknown advantages {kind!r}; choose one of {', '.join(ADVANTAGES)}")
    return ADVANTAGES[kind](np.array(rewards, np.float64))


def _deviations(rewards: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the rewards, the number of rewards in each group, and the rewards' deviations from the group's mean."""
    r = np.asarray(rewards, dtype=np.float64)
    count = np.sum(~np.isnan(r), axis=-1, keepdims=True)
    mean = np.nansum(r, axis=-1, keepdims=True) / np.maximum(count, 1)
    return r, count, r - mean


def _zero_where_missing(rewards: NDArray[np.float64], advantages: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(rewards), 0.0, advantages)
