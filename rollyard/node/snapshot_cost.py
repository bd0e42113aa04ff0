"""When a snapshot is worth its cost, and whether a rollout goes on from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.node.same_result import was_cut
from rollyard.trajectory import Turn

SHARE = 0.03
"""Greatest share of a rollout's time that snapshots take."""
FIRST_SECONDS = 1.0
"""Cost of a rollout's first snapshot, before any was taken."""
BYTES_PER_SECOND = 20e6
"""Bytes of a compressed snapshot that cost as much as a second: they are sent, written and kept."""
LEAST_LIMIT_SECONDS = 5.0
"""A snapshot may always take this long."""
SHORT_SECONDS = 60.0
"""Calls that took no longer than this together are run again rather than sampling a turn again."""
STATEFUL = ("bash", "ipython")
"""Tools whose processes keep a state that no snapshot has."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one snapshot."""

    seconds: float
    size: int
    """Length of the compressed archive in bytes."""

    @property
    def whole(self) -> float:
        return self.seconds + self.size / BYTES_PER_SECOND


def is_due(last: Cost | None, since: float, writing_calls: int) -> bool:
    """Whether to take a snapshot now. `since`: seconds since the last one, or since the beginning. `writing_calls`: calls since
    then that may have written."""
    cost = max(FIRST_SECONDS, last.whole) if last is not None else FIRST_SECONDS
    return writing_calls > 0 and cost <= SHARE * since


def longest(since: float) -> float:
    """Return the seconds after which a snapshot is given up. `since`: as of `is_due`. Nobody knows beforehand what the first
    one costs, nor one after many changes."""
    return max(LEAST_LIMIT_SECONDS, 2 * SHARE * since)


def may_write(call: Mapping[str, Any]) -> bool:
    return not (call["name"] == "editor" and call["arguments"].get("command") == "view")


def not_repeatable(turn: Turn, has_network: bool) -> str | None:
    """Return why the calls of a turn cannot be run again; None if they can."""
    if not turn.tool_calls:
        return None
    if has_network:
        return "its calls had the network"
    return "one of its calls was cut off" if any(map(was_cut, turn.tool_results)) else None


def loses_state(turns: Sequence[Turn]) -> set[str]:
    """Return the tools whose state is gone if a sandbox begins with a snapshot after these turns."""
    return {call["name"] for turn in turns for call in turn.tool_calls if call["name"] in STATEFUL}


def prefers_snapshot(turns: Sequence[Turn], snapshot: int, has_network: bool, began_so: bool = False) -> bool:
    """Whether a rollout goes on from the snapshot after this turn; else all calls are run again, from INIT on. `began_so`:
    whether an earlier lease began with a snapshot. Calls after it had another state than if all were run again."""
    from_init = next((n for n, turn in enumerate(turns) if not_repeatable(turn, has_network)), len(turns))
    if began_so or snapshot > from_init:
        return True
    again = sum(turn.timings.get("tools", 0.0) for turn in turns[:from_init])
    if not loses_state(turns[:snapshot]):
        return again > SHORT_SECONDS
    return again > max(SHORT_SECONDS, sum(sum(turn.timings.values()) for turn in turns[snapshot:from_init]))
