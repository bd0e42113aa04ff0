"""Answers of a session's calls: stored before their callers get the end of them, and kept until they have arrived."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from rollyard.gateway.requests.chat_request import ChatResponse
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.chat_to_ids import PreparedChat
from rollyard.gateway.session.prompt_history import PreparedPrompt
from rollyard.gateway.session.recorded_turns import RecordedTurn
from rollyard.gateway.session.stored_call import StoredCall, StoredChat, StoredPrompt, checksum
from rollyard.gateway.session.undelivered import UndeliveredCalls


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
        identity = identity_of(prepared.request_key, wanted)
        self._note_turns(identity, recorded, held=True)
        if self._journal is not None:
            # The alternatives to each token would take many times as much space as the tokens.
            turns = [replace(one.stored, likeliest=[]) for one in recorded]
            stored = StoredCall(call, checksum(prepared.prompt), turns, wanted.top_logprobs, begun, identity)
            self._journal.add(recorded[0].response.turn, stored)
        return [one.response for one in recorded]

    def repeated(self, request_key: str, wanted: SamplingOverrides) -> list[ChatResponse] | None:
        """Return the answers that did not arrive if this call repeats theirs."""
        return self._undelivered.take(identity_of(request_key, wanted))

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


def identity_of(request_key: str, wanted: SamplingOverrides) -> str:
    """Return a digest by which the repetition of a call is recognised."""
    return hashlib.sha256(f"{request_key}\0{wanted}".encode("utf-8", "surrogatepass")).hexdigest()
