"""Numbers for rollouts without a reward, for trainers that compute with a number for every rollout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean


def filled(rewards: Sequence[float | None], groups: Sequence[Hashable]) -> list[float]:
    """Replace each missing reward by the mean of its group's rewards; if the group has none, by the mean of all rewards.

    Such a number changes neither the mean of the group nor the trainer's mean reward. A 0 would change both. The
    rollout's tokens must not be trained on. `groups`: the group of each rollout. If there is no reward at all, each
    number is 0.
    """
    found = defaultdict[Hashable, list[float]](list)
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            found[group].append(reward)
    every = [reward for group in found.values() for reward in group]
    return [
        reward if reward is not None else fmean(found.get(group) or every or [0.0])
        for reward, group in zip(rewards, groups, strict=True)
    ]
