"""Trajectories: what trainers get of ended rollouts."""

from __future__ import annotations

from rollyard.kinds.rollout import ForkPoint
from rollyard.kinds.task import Task
from rollyard.trajectory.outcome import Outcome


class Trajectory(Outcome):
    """Whole result of a rollout, for trainers: its outcome, and the identity of the rollout."""

    forked_from: ForkPoint | None = None
    """Turn of another rollout from which this one went on. All tokens up to there have a loss mask of 0 here; the other
    rollout has them with logprobs."""
    regrade_of: str | None = None
    """Rollout whose stored artifact this one scored again."""

    id: str
    namespace: str = "default"
    group: str | None
    sample_index: int
    attempt: int
    mode: str = "train"
    task: Task
