"""Estimated lengths of discarded unfinished groups. The estimates show how discarding biases the lengths. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.store.batch_records import GroupRecord, LengthSums, TaskHistory


def discarded_lengths(
    group: GroupRecord, running: Sequence[float], history: TaskHistory | None, known: LengthSums, share: float
) -> LengthSums:
    """Expected lengths of a discarded group, multiplied by `share`, the probability that the group was informative.

    For a rollout with a reward, its own lengths are used. For an unfinished rollout, the seconds are estimated: the
    mean of the group's rollouts with a reward, else the mean of the task's history, else the mean of `known`. If the
    rollout has already run longer, this time (in `running`) is used instead. `known`: sums of lengths over the series'
    informative groups. The estimated seconds are turned into tokens and turns with the tokens per second and turns per
    second of `known`, or of the group if `known` is empty.
    """
    own = LengthSums().plus(group.ended)
    if own.rollouts:
        mean = own.seconds / own.rollouts
    elif history is not None and history.rollouts:
        mean = history.seconds
    else:
        mean = known.seconds / known.rollouts if known.rollouts else 0.0
    base = known if known.seconds else own
    seconds = sum(max(mean, elapsed) for elapsed in running)
    rate = seconds / base.seconds if base.seconds else 0.0
    return LengthSums(
        (own.rollouts + len(running)) * share,
        (own.tokens + base.tokens * rate) * share,
        (own.turns + base.turns * rate) * share,
        (own.seconds + seconds) * share,
    )
