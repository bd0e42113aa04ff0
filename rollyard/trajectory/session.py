"""Trajectories of sessions of external agents."""

from __future__ import annotations

from rollyard.kinds.base import WireModel
from rollyard.kinds.session import SessionView
from rollyard.trajectory.segment import Segment
from rollyard.trajectory.turn import Turn


class SessionTrajectory(WireModel):
    """Record of the session so far, in the shape of a rollout's trajectory."""

    segments: list[Segment]
    turns: list[Turn]
    breaks: dict[str, int]
    """Cause -> number of calls that could not continue a segment for this cause."""


class SessionRecord(WireModel):
    """Answer to GET and to close."""

    session: SessionView
    trajectory: SessionTrajectory
