"""Trajectories: what rollouts and sessions leave for trainers, as objects and as arrays."""

from rollyard.trajectory.artifact import Artifact
from rollyard.trajectory.outcome import Outcome, RunResult, Timings
from rollyard.trajectory.role_call import RoleCall
from rollyard.trajectory.saved_turn import SavedTurn
from rollyard.trajectory.segment import Segment, most_sampled, sampled_tokens
from rollyard.trajectory.trajectory import Trajectory
from rollyard.trajectory.turn import Turn

__all__ = [
    "Artifact",
    "Outcome",
    "RoleCall",
    "RunResult",
    "SavedTurn",
    "Segment",
    "Timings",
    "Trajectory",
    "Turn",
    "most_sampled",
    "sampled_tokens",
]
