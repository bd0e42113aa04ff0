"""Estimated lengths of unfinished groups that are discarded. They show the bias from discarding. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.server.store.batch_records import GroupRecord, LengthSums, TaskHistory


def discarded_lengths(
    group: GroupRecord, running: Sequence[float], history: TaskHistory | None, known: LengthSums, share: float
) -> LengthSums:
    """Expected lengths of a discarded group, weighted by the probability that it was informative.

    A rollout with a reward has its own lengths. One that has not ended gets the mean seconds of its group, else of its
    task's history, else of `known`, but at least those that it has run (`running`). `known`: lengths in the series.
    Their tokens and turns per second convert the estimated seconds.
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
