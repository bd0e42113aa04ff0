"""The history of a rollout as a table for people."""

from __future__ import annotations

from datetime import UTC, datetime

from rollyard.cli.output import align
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_history import HistoryEntry, HistoryEvent, RolloutHistory

ENDPOINT_REASONS = {
    "WarmPrefix": "a part of the prompt is in its cache",
    "SameNode": "on the same node",
    "LeastLoad": "least load",
}


def history_lines(history: RolloutHistory) -> list[str]:
    """Return a header and a line for each stored entry. If entries were dropped, one more line has their number."""
    start = history.entries[0].at
    rows = [["TIME", "AFTER", "ATTEMPT", "LEASE", "STAGE", "EVENT", "DETAILS"]]
    for place, entry in enumerate(history.entries):
        if history.dropped and place == history.kept_first:
            rows.append(["...", "", "", "", "", "", f"{history.dropped} entries are not kept"])
        time = datetime.fromtimestamp(entry.at, UTC)
        row = [f"{time:%Y-%m-%d %H:%M:%S}", f"{entry.at - start:.1f}s", str(entry.attempt), str(entry.lease or "")]
        rows.append([*row, entry.stage.value, entry.event, _details(entry)])
    return align(rows)


_BEGUN_AGAIN = {Stage.INIT: Stage.INIT, Stage.RUN: Stage.INIT, Stage.EVAL: Stage.EVAL}
"""Stage of a fault -> stage with which an attempt without saved turns begins. EVAL has the result of RUN."""


def _details(entry: HistoryEntry) -> str:
    if entry.event == HistoryEvent.LEASED:
        return _lease(entry)
    words = [": ".join(text for text in (entry.reason, entry.message) if text)]
    if entry.role is not None:
        words.insert(0, f"{entry.role} from {entry.previous or '<none>'} to {entry.endpoint}")
    if entry.status is not None:
        reward = "" if entry.reward is None else f", reward {entry.reward:g}"
        words.insert(0, f"{entry.status.value}{reward}")
    if entry.seconds:
        words.append("at work: " + ", ".join(f"{stage.upper()} {took:.1f} s" for stage, took in entry.seconds.items()))
    if entry.retry_at is not None:
        place = f"after turn {entry.turns}" if entry.turns else f"from the beginning of {_BEGUN_AGAIN[entry.stage]}"
        words.append(f"the next attempt begins {entry.retry_at - entry.at:.1f} s later, {place}")
    return "; ".join(" ".join(word.split()) for word in words if word)


def _lease(entry: HistoryEntry) -> str:
    why = {
        "OnlyOne": "the only node agent with room for it",
        "MostRoom": f"the most room of {entry.able} node agents: {entry.free}",
        "HasImage": f"of the node agents with its image, the most room: {entry.free}",
        "Exclusive": "a node agent without other work",
    }.get(entry.reason or "", entry.reason or "")
    words = [f"node {entry.node}, {entry.allocation}" + (f" ({why})" if why else "")]
    for role, chosen in (entry.endpoints or {}).items():
        reason = ENDPOINT_REASONS.get(chosen.reason, chosen.reason)
        words.append(f"{role} {chosen.id}" + (f" ({reason})" if reason else ""))
    if entry.weights_version:
        words.append(f"weights {entry.weights_version}")
    return "; ".join(words)
