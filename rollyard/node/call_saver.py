"""Saves the model calls of a command, so that another node agent can run the command again with the same answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import NoReturn

import zstandard

from rollyard.core.failpoints import failpoint
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.turn_saver import LEVEL, TurnSaver
from rollyard.trajectory import SavedTurn, Turn

LEAST_PAUSES_LEFT = 1.5
"""A command leaves its node agent if the time to the allocation's end is shorter than this many of the longest time between two
of its calls."""


class CallSaver:
    """A `CallJournal` that uploads in the background. It holds back the answers of a rollout that leaves its node: the call is
    saved, and answered in the next sandbox."""

    def __init__(
        self, saver: TurnSaver, end: AllocationEnd, spent: Callable[[], float], leave: Callable[[str], None]
    ) -> None:
        """`spent`: seconds of RUN's budget so far. `leave` ends the command, with the reason."""
        self._saver = saver
        self._end = end
        self._spent = spent
        self._leave = leave
        self._calls: list[StoredCall] = []
        self._last = asyncio.get_running_loop().time()
        self._longest = 0.0
        self.leaving = False
        self.paused = asyncio.Event()
        """Set when an answer is held back."""

    def add(self, turn: int, call: StoredCall) -> None:
        self._calls.append(call)

    def note_delivered(self, turn: int) -> None:
        failpoint("after-answered-call")

    async def flush(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            self._saver.save(packed(call, self._spent()))
        now = asyncio.get_running_loop().time()
        self._longest, self._last = max(self._longest, now - self._last), now
        if self.leaving:
            await self._hold()
        if not self._saver.stopped and self._end.is_near(LEAST_PAUSES_LEFT * self._longest):
            self.leaving = True
            await self._saver.flush()
            self._leave(self._end.reason)
            await self._hold()

    async def _hold(self) -> NoReturn:
        """Wait for the cancellation that ends the command."""
        self.paused.set()
        while True:
            await asyncio.get_running_loop().create_future()


def packed(call: StoredCall, spent: float) -> bytes:
    """Return a call, compressed. `spent`: seconds of RUN's budget so far."""
    last = call.turns[-1]
    turn = Turn(
        segment=0,
        prompt_length=call.prompt[0],
        response_length=len(last.ids),
        text=last.answer.content,
        finish_reason=last.finish,
        tool_calls=[{"name": one.name, "arguments": one.arguments} for one in last.answer.calls],
        timings={"model": round(last.seconds, 6), "tools": 0.0},
        constraint=last.constraint,
    )
    saved = SavedTurn.model_construct(
        turn=turn,
        token_ids=[],
        logprobs=[],
        weights_versions=[*last.sampled.weights_versions[:1]],
        prompt_digest="",
        run_seconds=spent,
        call=json.loads(call.to_bytes()),
    )
    return zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress(saved.model_dump_json().encode())
