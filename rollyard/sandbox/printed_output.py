"""Bytes that a command has printed, in bounded length, addressed by their place in all that it has printed."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.sandbox_agent.output_capture import LIMIT


@dataclass(frozen=True)
class PrintedOutput:
    """The output of a command that has ended. `total`: number of bytes that it has printed.

    `kept` has all of them, or the first and the last `LIMIT // 2` with a line between them.
    """

    kept: bytes = b""
    total: int = 0

    def after(self, position: int) -> tuple[bytes, int]:
        """Return the kept bytes after the first `position` printed bytes, and `total`."""
        if position < LIMIT // 2:
            return self.kept[position:], self.total
        rest = max(0, min(self.total - position, LIMIT // 2))
        return self.kept[len(self.kept) - rest :], self.total


NOTHING = PrintedOutput()
