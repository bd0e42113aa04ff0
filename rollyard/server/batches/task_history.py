"""History of a task: numbers about earlier groups of the task. Draws use these numbers. Pure."""

from __future__ import annotations

from rollyard.store.batch_records import GroupRecord, LengthSums, TaskHistory

MEAN_ROLLOUTS = 64
"""Greatest weight of the old mean, in rollouts, when the rollouts of a new group are added. So the means follow the
changing policy."""


def with_group(history: TaskHistory | None, group: GroupRecord, *, informative: bool) -> TaskHistory:
    """Return the history after one more group with a verdict."""
    before, new = history or TaskHistory(), LengthSums().plus(group.ended)
    weight = min(before.rollouts, MEAN_ROLLOUTS)
    total = weight + new.rollouts
    return TaskHistory(
        groups=before.groups + 1,
        informative=before.informative + informative,
        streak=0 if informative else before.streak + 1,
        rollouts=before.rollouts + int(new.rollouts),
        seconds=(before.seconds * weight + new.seconds) / total if total else 0.0,
        tokens=(before.tokens * weight + new.tokens) / total if total else 0.0,
    )
