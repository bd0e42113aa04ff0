"""Padded arrays for training, from the columns of groups of trajectories: one row for each segment.

If an agent rewrote the conversation's history, the rollout has several segments. Each segment is a separate sequence
with the rollout's advantage. PPO, GRPO and DAPO can use these arrays; the trainer computes the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollyard.client.advantages import group_advantages
from rollyard.trajectory.array_file import Array
from rollyard.trajectory.columns import Columns

N = TypeVar("N", np.int64, np.int32, np.float32)


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
    """Number of the row's group. The groups that the server made are numbered in the order of the columns."""
    rollout: NDArray[np.int32]
    """Index of the row's rollout in the columns. Rows of one rollout have the same index."""

    @property
    def sampled_tokens(self) -> int:
        return int(self.loss_mask.sum())


def collate(
    columns: Columns,
    *,
    groups: Sequence[int] | None = None,
    advantages: str = "grpo",
    pad_id: int = 0,
    max_length: int | None = None,
) -> TrainingRows:
    """Make the arrays. `columns`: the rollouts of one or more groups; `trajectory.columns.join` joins the `columns` of
    groups, and `columns_of` makes columns of trajectories. `groups`: number of each rollout's group, from 0. Default: the
    groups that the server made; a rollout without a group is then a group of its own.

    A rollout without a reward gets no row, and its group's advantages are computed without it. A segment without a sampled
    token gets no row either: a mean over its tokens to train on would be 0 / 0.

    `advantages`: a name from `rollyard.client.advantages.ADVANTAGES`. `max_length`: longer segments are left out as a
    whole, because a cut segment would train on half of an action. Raises ValueError if no row is left.
    """
    rewards, group = columns.rewards, np.array(_groups(columns) if groups is None else groups, np.int32)
    gains = np.zeros(len(columns))
    for number in range(group.max(initial=-1) + 1):
        gains[group == number] = group_advantages(rewards[group == number], advantages)
    rollouts = np.repeat(np.arange(len(columns), dtype=np.int32), np.diff(columns.sample_segment_offsets))
    lengths = np.diff(columns.segment_offsets)
    sampled = np.diff(np.append(0, np.cumsum(columns.loss_mask != 0))[columns.segment_offsets])
    used = (sampled > 0) & ~np.isnan(rewards[rollouts])
    if max_length is not None:
        used &= lengths <= max_length
    if not used.any():
        raise ValueError(
            "no rollout has a reward and a segment to train on that fits; look at their `status` and `error`"
        )
    rollout, tokens = rollouts[used], np.repeat(used, lengths)
    there = np.arange(lengths[used].max()) < lengths[used][:, None]

    def padded(values: Array, fill: int, kind: type[N]) -> NDArray[N]:
        found = np.full(there.shape, fill, kind)
        found[there] = values[tokens]  # the tokens of the rows follow one another, as they do in the columns
        return found

    seen = np.zeros(len(columns.versions) + 1, bool)
    seen[columns.weights_version[tokens]] = True
    numbers = np.cumsum(seen) - 1
    numbers[-1] = -1  # the index of a token that was not sampled
    return TrainingRows(
        input_ids=padded(columns.token_ids, pad_id, np.int64),
        attention_mask=there.astype(np.int64),
        loss_mask=padded(columns.loss_mask, 0, np.int64),
        logprobs=padded(columns.logprobs, 0, np.float32),
        weights_version=padded(numbers[columns.weights_version], -1, np.int32),
        versions=tuple(compress(columns.versions, seen)),
        rewards=rewards[rollout],
        advantages=gains[rollout],
        group=group[rollout],
        rollout=rollout,
    )


def _groups(columns: Columns) -> list[int]:
    numbers: dict[Any, int] = {}
    names = ((s["namespace"], s["group"]) if s["group"] is not None else i for i, s in enumerate(columns.samples))
    return [numbers.setdefault(name, len(numbers)) for name in names]
