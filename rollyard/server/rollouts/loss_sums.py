"""Sums over lost attempts and leases, from the histories of rollouts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import from_json

from rollyard.kinds.rollout_history import LOSS_EVENTS, HistoryEvent, LossSums


def loss_sums(histories: Iterable[tuple[str, str]], since: float) -> list[LossSums]:
    """Return the losses since a time (Unix seconds) by reason and node, the most first. `histories`: id and history of each
    rollout."""
    found: dict[tuple[str | None, str | None], list[tuple[float, str]]] = {}
    for id, history in histories:
        node = None
        for line in map(from_json, history.split("\n")[:-1]):
            if isinstance(line, int):
                node = None  # the entries of some leases were dropped
                continue
            at, event, _, _, fields = line
            if event == HistoryEvent.LEASED:
                node = fields.get("node")
            if event in LOSS_EVENTS and at >= since:
                found.setdefault((fields.get("reason"), fields.get("node", node)), []).append((at, id))
    rows = [
        LossSums(
            reason=reason,
            node=node,
            losses=len(losses),
            rollouts=len({id for _, id in losses}),
            newest=max(losses)[1],
            newest_at=max(losses)[0],
        )
        for (reason, node), losses in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.losses, row.reason or "", row.node or ""))
