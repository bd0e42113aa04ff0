"""Forks: rollouts that go on from a turn of another rollout. They are checked when they are submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.core.errors import ApiError, Cause, Invalid, NotFound
from rollyard.kinds.rollout import ForkPoint, RolloutRequest
from rollyard.server.rollouts.results import snapshot_of_turn, turns
from rollyard.store.base import RolloutRecord, StoredSnapshot
from rollyard.store.store import Store

MAX_ANCESTORS = 64
_FIELD = "agent.fork_from"


class Forks:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, namespace: str, requests: Sequence[RolloutRequest]) -> None:
        """Raise Invalid for a request that goes on from a turn from which no rollout can go on. A request that attaches to an
        existing rollout is not checked."""
        for request in requests:
            if request.agent.fork_from is None or await self._exists(namespace, request):
                continue
            try:
                await self._check_point(namespace, request, request.agent.fork_from)
            except ApiError as error:
                raise Invalid(str(error), causes=[Cause(_FIELD, str(error))]) from None

    async def _exists(self, namespace: str, request: RolloutRequest) -> bool:
        id = f"{request.id}.0" if request.n > 1 else request.id
        return request.id is not None and await self._store.rollouts.get(namespace, str(id)) is not None

    async def _check_point(self, namespace: str, request: RolloutRequest, point: ForkPoint) -> None:
        parent, _ = await self.point(namespace, point)
        if parent.pool != request.pool:
            raise Invalid(
                f"rollout {parent.id!r} ran in pool {parent.pool!r}; a rollout that goes on from it needs this pool"
            )
        theirs = RolloutRequest.model_validate_json(parent.request)
        if theirs.task != request.task:
            raise Invalid(f"rollout {parent.id!r} had another task; a rollout that goes on from it needs the same task")
        if theirs.agent.command is not None:
            raise Invalid(
                f"rollout {parent.id!r} ran a command, which has a conversation of its own; fork from the built-in loop"
            )
        assert parent.result is not None
        if await self._store.packs.use([parent.result], lambda blobs: _ends(turns(blobs[0]), point.turn)):
            raise Invalid(
                f"turn {point.turn} of rollout {parent.id!r} ended the conversation: it has no tool calls, or the limit of "
                "tokens cut it off; fork from an earlier turn"
            )
        if len(await self.ancestors(namespace, point)) > MAX_ANCESTORS:
            raise Invalid(
                f"at most {MAX_ANCESTORS} rollouts may go on one from another; begin with a rollout of its own"
            )

    async def point(self, namespace: str, point: ForkPoint) -> tuple[RolloutRecord, StoredSnapshot]:
        """Return the rollout and its snapshot after the turn. Raises Invalid, NotFound."""
        record = await self._store.rollouts.get(namespace, point.rollout)
        if record is None:
            raise NotFound(
                f"there is no rollout {point.rollout!r} to fork from; results are deleted after the pool's "
                "`ttlSecondsAfterFinished`, and after their batch has acknowledged them"
            )
        if not record.status.terminal:
            raise Invalid(f"rollout {record.id!r} has not ended yet; fork from it when it has")
        if record.result is None:
            raise NotFound(
                f"rollout {record.id!r} ended {record.status} without a stored conversation; fork from another"
            )
        return record, snapshot_of_turn(record, await self._store.rollouts.snapshots(record), str(point.turn))

    async def ancestors(self, namespace: str, point: ForkPoint | None) -> list[tuple[ForkPoint, RolloutRecord]]:
        """Return the rollouts from which a rollout goes on, each with its last turn, the first one first."""
        found: list[tuple[ForkPoint, RolloutRecord]] = []
        while point is not None and len(found) <= MAX_ANCESTORS:
            record, _ = await self.point(namespace, point)
            found.append((point, record))
            point = RolloutRequest.model_validate_json(record.request).agent.fork_from
        return found[::-1]


def _ends(turns: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Return whether a turn ended the conversation. The node agent checks the rest, because only it can repeat the turns."""
    turn = turns[number - 1] if number <= len(turns) else None
    return turn is not None and (turn["finish_reason"] == "length" or not turn.get("tool_results"))
