"""Rollouts for slime 0.3. docs/slime.md shows their use. slime itself is installed from its repository."""

from rollyard.trainers.slime.rollout_function import generate_rollout
from rollyard.trainers.slime.samples import group_rewards

__all__ = ["generate_rollout", "group_rewards"]
