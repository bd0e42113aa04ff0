"""Groups that a batch has delivered, and pages of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from rollyard.kinds.batch import BatchView
from rollyard.trajectory.columns import Columns
from rollyard.trajectory.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Group:
    """Delivered group: the n rollouts of one task, by sample index."""

    delivery: int
    """Position among the batch's delivered groups, from 1. Pass the last position as `after` to get the next groups."""
    id: str
    task_index: int
    """Index of the task in its source."""
    drawn_at: float
    staleness: int | None
    """Number of training steps between the draw of the group and the step that uses the group. This number bounds
    the staleness of each token of the group if the trainer updates the weights before it acknowledges a step."""
    columns: Columns
    """All n rollouts as arrays. `rollyard.client.training_rows.collate` makes padded rows of them."""

    @cached_property
    def rollouts(self) -> list[Trajectory]:
        """All n rollouts, with lists of Python numbers, which are made at the first read. A rollout that ended Failed,
        InfraFailed or Cancelled has the reward None."""
        return self.columns.trajectories()

    @property
    def rewards(self) -> list[float | None]:
        return [sample["reward"] for sample in self.columns.samples]


@dataclass(frozen=True, eq=False)
class GroupPage:
    """Answer of GET /v1/batches/ID/groups."""

    groups: list[Group]
    next: int
    """Value of `after` for the next page."""
    batch: BatchView

    @property
    def last(self) -> bool:
        """Whether no further group will follow."""
        return self.next >= self.batch.delivered and self.batch.all_delivered


def group_page(columns: Columns) -> GroupPage:
    """Return the page whose file these columns are."""
    about = columns.about
    ranges = pairwise(accumulate((group["rollouts"] for group in about["groups"]), initial=0))
    groups = [
        Group(
            group["delivery"],
            group["id"],
            group["task_index"],
            group["drawn_at"],
            group["staleness"],
            columns.part(first, end),
        )
        for group, (first, end) in zip(about["groups"], ranges, strict=True)
    ]
    return GroupPage(groups, about["next"], BatchView.model_validate(about["batch"]))
