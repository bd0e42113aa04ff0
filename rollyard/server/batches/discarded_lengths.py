"""Estimated lengths of unfinished groups that are thrown away, so that the bias of this is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.server.store.batch_records import GroupRecord, LengthSums, TaskHistory


def discarded_lengths(
    group: GroupRecord, running: Sequence[float], history: TaskHistory | None, known: LengthSums, share: float
) -> LengthSums:
    """Expected lengths of a discarded group, weighted by the probability that it was informative.

    Its rollouts with a reward count as they are. One that did not end counts with the mean of its group, of its task's
    history or of `known`, but at least with the time for which it has run. `running`: seconds of those that did not
    end. `known`: lengths in the series; its tokens and turns per second are used for rollouts whose end is not known.
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
