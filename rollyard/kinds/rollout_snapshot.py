"""Snapshots of a rollout's sandbox, as their users see them."""

from __future__ import annotations

from rollyard.kinds.base import WireModel


class RolloutSnapshot(WireModel):
    """Files that the sandbox had changed at the end of one turn. If there is an `error`, no file is stored."""

    turn: int
    """Number of the turn after which the snapshot was taken; the first turn is 1."""
    size: int = 0
    """Length of the compressed archive in bytes."""
    sha256: str = ""
    """Digest of the compressed archive."""
    archive_bytes: int = 0
    """Length of the archive before compression."""
    files: int = 0
    left_out: list[str] = []
    """Names of sockets, devices and unreadable files, which the snapshot lacks; at most ten."""
    left_out_count: int = 0
    image: str = ""
    """Identity of the image from which the sandbox was started. Empty: the default image."""
    created_at: float = 0.0
    """Unix seconds."""
    error: str | None = None
    """Why no archive is stored."""


class RolloutSnapshots(WireModel):
    """Snapshots of a rollout's last attempt, in the order of the turns."""

    snapshots: list[RolloutSnapshot]
