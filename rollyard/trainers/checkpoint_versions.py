"""Weights versions of a trainer that only writes checkpoints. `rollyard weights follow` serves them (docs/weights.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointVersions:
    """Names of the versions that a trainer's checkpoints become."""

    prefix: str = "step"
    """Text before the number, as in `--prefix` of the command."""
    every: int = 1
    """Number of training steps between two checkpoints."""
    lag: int = 0
    """Number of training steps by which the weights of a rollout may be older than the newest. A trainer needs 1 if it
    asks for rollouts before it has written the checkpoint of the last step."""
    first: int = 1
    """Number in the name of the checkpoint after the first training step."""

    def required(self, steps_done: int) -> str | None:
        """Return the oldest version for rollouts after this number of training steps; None if no checkpoint is there."""
        saved = (steps_done - self.lag) // self.every * self.every
        return f"{self.prefix}{saved - 1 + self.first}" if saved > 0 else None

    def number(self, version: str) -> int | None:
        """Return the number in a version's name; None if the version is not a checkpoint's."""
        digits = version.removeprefix(self.prefix)
        return int(digits) if version.startswith(self.prefix) and digits.isascii() and digits.isdigit() else None
