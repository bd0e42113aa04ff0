"""Answers of a session's calls: stored before their callers get the end of them, and kept until they have arrived.

Recorded calls whose answers may not have reached their callers. A repetition of such a call gets the recorded answers,
so no turn is sampled twice for one call.

While the answers of a call are being sent, the call is held. If the connection breaks or the server ends, the call is
free, and the next call with the same request gets its answers. A call is delivered when its answers were written, or when
a later call continues one of its turns.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rollyard.gateway.requests.chat_request import ChatResponse
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.chat_to_ids import PreparedChat
from rollyard.gateway.session.prompt_history import PreparedPrompt
from rollyard.gateway.session.recorded_turns import RecordedTurn
from rollyard.gateway.session.stored_call import StoredCall, StoredChat, StoredPrompt, checksum

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


class CallJournal(Protocol):
    """Makes the calls of a session durable."""

    def add(self, turn: int, call: StoredCall) -> None:
        """Add a recorded call. `turn`: index of its first turn. Calls are added in the order of their turns."""

    def note_delivered(self, turn: int) -> None:
        """Note that the answer of the call with this first turn reached its caller. The note may be lost if the process
        ends soon after."""

    async def flush(self) -> None:
        """Return when all added calls are durable. Raises GatewayError."""


class AnsweredCalls:
    """Calls of one session whose turns are recorded."""

    def __init__(self, journal: CallJournal | None) -> None:
        """`journal`: stores each call; None stores none."""
        self._undelivered = UndeliveredCalls()
        self._journal = journal

    @property
    def any_to_repeat(self) -> bool:
        """Whether a call may be the repetition of one whose answer did not arrive."""
        return self._undelivered.any_free

    def restore(self, identity: str, turns: Sequence[RecordedTurn], *, delivered: bool) -> None:
        """Add a stored call to a new session. `delivered`: whether its answer arrived."""
        self._note_turns(identity, turns, held=False)
        if delivered:
            self._undelivered.remove(turns[0].response.turn)

    def keep(
        self,
        call: StoredChat | StoredPrompt,
        prepared: PreparedChat | PreparedPrompt,
        wanted: SamplingOverrides,
        begun: int,
        recorded: Sequence[RecordedTurn],
    ) -> list[ChatResponse]:
        """Add a recorded call to the journal; return its answers. `begun`: number of turns that were begun before it."""
        identity = _identity(prepared.request_key, wanted)
        self._note_turns(identity, recorded, held=True)
        if self._journal is not None:
            # The alternatives to each token would take many times as much space as the tokens.
            turns = [replace(one.stored, likeliest=[]) for one in recorded]
            stored = StoredCall(call, checksum(prepared.prompt), turns, wanted.top_logprobs, begun, identity)
            self._journal.add(recorded[0].response.turn, stored)
        return [one.response for one in recorded]

    def repeated(self, request_key: str, wanted: SamplingOverrides) -> list[ChatResponse] | None:
        """Return the answers that did not arrive if this call repeats theirs."""
        return self._undelivered.take(_identity(request_key, wanted))

    async def flush(self) -> None:
        """Return when all calls are durable. Raises GatewayError."""
        if self._journal is not None:
            await self._journal.flush()

    def delivered(self, responses: Sequence[ChatResponse]) -> None:
        """Note that the answers of a call were written to its caller's connection."""
        self._note_delivered(responses[0].turn)

    def not_delivered(self, responses: Sequence[ChatResponse]) -> None:
        """Keep the answers for a repetition of their call, because the caller's connection broke."""
        self._undelivered.release(responses[0].turn)

    @contextlib.contextmanager
    def kept_on_error(self, responses: Sequence[ChatResponse]) -> Iterator[None]:
        """Keep the answers for a repetition of their call if the block raises an error."""
        try:
            yield
        except BaseException:
            self.not_delivered(responses)
            raise

    def _note_turns(self, identity: str, recorded: Sequence[RecordedTurn], *, held: bool) -> None:
        for one in recorded:
            if one.previous is not None:  # the caller has sent that turn back, so it had arrived
                self._note_delivered(one.previous)
        self._undelivered.add(identity, [one.response for one in recorded], held=held)

    def _note_delivered(self, turn: int) -> None:
        first = self._undelivered.remove(turn)
        if first is not None and self._journal is not None:
            self._journal.note_delivered(first)


def _identity(request_key: str, wanted: SamplingOverrides) -> str:
    """Return a digest by which the repetition of a call is recognised."""
    return hashlib.sha256(f"{request_key}\0{wanted}".encode("utf-8", "surrogatepass")).hexdigest()
