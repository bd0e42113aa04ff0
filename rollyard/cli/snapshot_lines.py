"""Snapshots of a rollout's sandbox as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.cli.output import align
from rollyard.kinds.rollout_snapshot import RolloutSnapshot


def snapshot_lines(snapshots: Sequence[RolloutSnapshot]) -> list[str]:
    """Return a table with a header and one line for each snapshot."""
    return align([["SNAPSHOT AFTER TURN", "FILES", "SIZE", "UNPACKED", "LEFT OUT"], *map(_row, snapshots)])


def _row(one: RolloutSnapshot) -> list[str]:
    if one.error is not None:
        return [str(one.turn), "-", "-", "-", f"not stored: {one.error}"]
    left_out = ", ".join(one.left_out)
    if one.left_out_count > len(one.left_out):
        left_out += f" and {one.left_out_count - len(one.left_out)} more"
    return [str(one.turn), str(one.files), size(one.size), size(one.archive_bytes), left_out or "-"]


def size(count: int) -> str:
    """Return a number of bytes for people."""
    left = float(count)
    for unit in ("B", "KiB", "MiB"):
        if left < 1024:
            return f"{left:.4g} {unit}"
        left /= 1024
    return f"{left:.4g} GiB"
