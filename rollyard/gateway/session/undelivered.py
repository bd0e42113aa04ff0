"""Recorded calls whose answers may not have reached their callers. A repetition of such a call gets the recorded answers,
so no turn is sampled twice for one call.

While the answers of a call are being sent, the call is held. If the connection breaks or the server ends, the call is
free, and the next call with the same request gets its answers. A call is delivered when its answers were written, or when
a later call continues one of its turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.gateway.requests.chat_request import ChatResponse

MAX_FREE_LOGPROBS = 1 << 16
"""Greatest number of logprobs in the answers of a session's free calls. One takes about 500 bytes. Beyond it, the oldest
free calls are forgotten, and a repetition of such a call is a new call."""


@dataclass
class _Undelivered:
    identity: str
    responses: list[ChatResponse]
    held: bool

    @property
    def logprobs(self) -> int:
        entries = (entry for response in self.responses for entry in response.logprobs)
        return sum(1 + len(entry.likeliest) for entry in entries)


class UndeliveredCalls:
    def __init__(self) -> None:
        self._by_turn: dict[int, _Undelivered] = {}

    @property
    def any_free(self) -> bool:
        return any(not call.held for call in list(self._by_turn.values()))  # a thread may add a call meanwhile

    def add(self, identity: str, responses: Sequence[ChatResponse], *, held: bool) -> None:
        call = _Undelivered(identity, list(responses), held)
        self._by_turn.update((response.turn, call) for response in responses)
        self._limit()

    def take(self, identity: str) -> list[ChatResponse] | None:
        """Hold the oldest free call with this identity, and return its answers; None if there is none."""
        for call in list(self._by_turn.values()):
            if not call.held and call.identity == identity:
                call.held = True
                return call.responses
        return None

    def release(self, turn: int) -> None:
        """Free the call with this turn, because its answers did not arrive."""
        if turn in self._by_turn:
            self._by_turn[turn].held = False
            self._limit()

    def remove(self, turn: int) -> int | None:
        """Remove the call with this turn, because its answers arrived. Return the call's first turn; None if the call was
        removed before."""
        call = self._by_turn.get(turn)
        if call is None:
            return None
        for response in call.responses:
            self._by_turn.pop(response.turn, None)
        return call.responses[0].turn

    def _limit(self) -> None:
        free = {id(call): call for call in list(self._by_turn.values()) if not call.held and call.responses[0].logprobs}
        size = sum(call.logprobs for call in free.values())
        for call in free.values():
            if size <= MAX_FREE_LOGPROBS:
                return
            size -= call.logprobs
            self.remove(call.responses[0].turn)
