"""Padded arrays for training, from groups of trajectories: one row for each segment.

If an agent rewrote the conversation's history, the rollout has several segments. Each segment is a separate sequence
with the rollout's advantage. PPO, GRPO and DAPO can use these arrays; the trainer computes the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollyard.client.advantages import group_advantages
from rollyard.kinds.rollout import Segment, Trajectory


@dataclass(frozen=True)
class TrainingRows:
    """Arrays of shape [rows, length] (padded on the right) or of shape [rows]."""

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    """1 for tokens, 0 for padding."""
    loss_mask: NDArray[np.int64]
    """1 for tokens that the policy sampled."""
    logprobs: NDArray[np.float32]
    """Natural logarithm of each token's probability at sampling; 0 where `loss_mask` is 0."""
    weights_version: NDArray[np.int32]
    """Index in `versions` of the weights that sampled the token; -1 where `loss_mask` is 0."""
    versions: tuple[str, ...]
    rewards: NDArray[np.float64]
    advantages: NDArray[np.float64]
    group: NDArray[np.int32]
    """Index of the row's group in the argument of `collate`."""
    rollout: NDArray[np.int32]
    """Index of the row's rollout, counted over all groups. Rows of one rollout have the same index."""

    @property
    def sampled_tokens(self) -> int:
        return int(self.loss_mask.sum())


def collate(
    groups: Sequence[Sequence[Trajectory]], *, advantages: str = "grpo", pad_id: int = 0, max_length: int | None = None
) -> TrainingRows:
    """Make the arrays. A rollout without a reward gets no row, and its group's advantages are computed without it. A
    segment without a sampled token gets no row either: a mean over its tokens to train on would be 0 / 0.

    `advantages`: a name from `rollyard.client.advantages.ADVANTAGES`. `max_length`: longer segments are left out as a
    whole, because a cut segment would train on half of an action. Raises ValueError if no row is left.
    """
    rows: list[tuple[int, int, float, float, Segment]] = []
    number = 0
    for position, group in enumerate(groups):
        gains = group_advantages([t.reward for t in group], advantages)
        for trajectory, advantage in zip(group, gains, strict=True):
            if trajectory.reward is not None:
                for segment in trajectory.segments:
                    if any(segment.loss_mask) and (max_length is None or len(segment.token_ids) <= max_length):
                        rows.append((position, number, trajectory.reward, float(advantage), segment))
            number += 1
    if not rows:
        raise ValueError(
            "no rollout has a reward and a segment to train on that fits; look at their `status` and `error`"
        )
    return _padded(rows, pad_id)


def _padded(rows: Sequence[tuple[int, int, float, float, Segment]], pad_id: int) -> TrainingRows:
    shape = len(rows), max(len(segment.token_ids) for *_, segment in rows)
    input_ids, attention_mask = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    loss_mask, logprobs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    weights_version, numbers = np.full(shape, -1, np.int32), dict[str | None, int]()
    for i, (*_, segment) in enumerate(rows):
        n = len(segment.token_ids)
        input_ids[i, :n], attention_mask[i, :n], loss_mask[i, :n] = segment.token_ids, 1, segment.loss_mask
        logprobs[i, :n] = [0.0 if logprob is None else logprob for logprob in segment.logprobs]
        weights_version[i, :n] = [
            -1 if version is None else numbers.setdefault(version, len(numbers)) for version in segment.weights_version
        ]
    return TrainingRows(
        input_ids=input_ids,
        attention_mask=attention_mask,
        loss_mask=loss_mask,
        logprobs=logprobs,
        weights_version=weights_version,
        versions=tuple(str(version) for version in numbers),
        rewards=np.array([reward for _, _, reward, _, _ in rows]),
        advantages=np.array([advantage for _, _, _, advantage, _ in rows]),
        group=np.array([position for position, *_ in rows], np.int32),
        rollout=np.array([number for _, number, *_ in rows], np.int32),
    )
