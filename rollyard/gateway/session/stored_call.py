"""An answered call as it is stored. A session's histories are rebuilt from its stored calls (`RecordedTurns.restore`).

A stored call has what the caller sent and what was sampled, and every choice that depended on chance or on calls in
flight at that time: the branch, the turns that replaced messages, and the ids of tool calls. A call that continues a
branch has only its new messages, so a session's calls together take about as much space as its tokens. Stored data only
grows: a new field has a default.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from rollyard.tokens.constraint import Constraint
from rollyard.tokens.sampled_tokens import Likeliest, Sampled
from rollyard.tokens.tool_calls import ToolCall


@dataclass(frozen=True)
class StoredChat:
    """A call with messages."""

    branch: int | None
    """Index of the branch that the call continued; None if it opened one."""
    messages: list[dict[str, Any]]
    """Messages after the branch's last sampled turn; for a new branch, all messages."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools of a new branch."""
    recalled: list[int | None] = field(default_factory=list)
    """`Opening.recalled` of a new branch."""
    why: Sequence[Any] | None = None
    """`Opening.why` of a new branch: turn, cause and explanation."""
    continued_text: str = ""
    continued_ids: list[int] = field(default_factory=list)
    response_id: str = ""
    own_messages: int = 0


@dataclass(frozen=True)
class StoredPrompt:
    """A call without messages."""

    branch: int | None
    new_ids: list[int]
    """Ids of the prompt after the branch's ids."""
    kept_text: int
    """Number of characters of the branch's text with which the prompt's text begins."""
    text: str
    """The rest of the prompt's text."""
    why: Sequence[Any] | None = None


@dataclass(frozen=True)
class ReadAnswer:
    """The text of a sampled turn, as it was read for the caller."""

    content: str
    """Text outside the calls as the caller sees it, with thoughts, up to the stop string."""
    calls: Sequence[ToolCall] = ()
    """All calls of the turn."""
    call_ids: Sequence[str] = ()
    """Ids of the calls that the caller got. These calls are the first ones of `calls`."""
    error: str | None = None
    """Why a call of the turn cannot be parsed."""
    stop: str | None = None
    """Stop string that ended the turn."""
    thoughts: str | None = None
    """`ParsedTurn.thoughts`."""
    spoken: str | None = None
    """`ParsedTurn.content`; None: the same as `content`."""


@dataclass(frozen=True)
class StoredTurn:
    """One sampled turn."""

    ids: list[int]
    logprobs: list[float]
    versions: Sequence[Sequence[Any]]
    """Weights versions of the ids in order, each with the number of its consecutive ids."""
    finish: str
    answer: ReadAnswer
    seconds: float
    likeliest: list[Likeliest] = field(default_factory=list)
    """`Sampled.likeliest`; empty in the store."""
    constraint: str | None = None
    """`Turn.constraint`."""

    @classmethod
    def of(cls, sampled: Sampled, answer: ReadAnswer, seconds: float, constraint: Constraint | None) -> StoredTurn:
        versions = [(version, len(list(same))) for version, same in groupby(sampled.weights_versions)]
        ids, logprobs, finish = sampled.token_ids, sampled.logprobs, sampled.finish_reason
        name = constraint.name if constraint is not None else None
        return cls(ids, logprobs, versions, finish, answer, seconds, sampled.likeliest, name)

    @cached_property
    def sampled(self) -> Sampled:
        versions = [version for version, count in self.versions for _ in range(count)]
        return Sampled(self.ids, self.logprobs, versions, self.finish, self.likeliest)


@dataclass(frozen=True)
class StoredCall:
    """An answered call."""

    call: StoredChat | StoredPrompt
    prompt: Sequence[int]
    """`checksum` of the prompt's ids."""
    turns: Sequence[StoredTurn]
    """Several turns if the call wanted several answers. All of them follow the same prompt."""
    top_logprobs: int | None = None
    """`SamplingOverrides.top_logprobs`."""
    begun: int = 0
    """Number of turns that the session had begun to sample before this call."""
    identity: str = ""
    """Digest of the request. A repetition of the call has the same digest."""

    def to_bytes(self) -> bytes:
        try:
            return to_json(self, inf_nan_mode="constants")
        except ValueError:  # the policy wrote half of a surrogate pair into arguments
            return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> StoredCall:
        return StoredCall.from_json(json.loads(data))

    @staticmethod
    def from_json(stored: dict[str, Any]) -> StoredCall:
        call = StoredChat(**stored["call"]) if "messages" in stored["call"] else StoredPrompt(**stored["call"])
        turns = [StoredTurn(**{**turn, "answer": _answer(turn["answer"])}) for turn in stored["turns"]]
        return StoredCall(**{**stored, "call": call, "turns": turns})


def _answer(stored: dict[str, Any]) -> ReadAnswer:
    return ReadAnswer(**{**stored, "calls": [ToolCall(**call) for call in stored["calls"]]})


def checksum(prompt: Sequence[int]) -> list[int]:
    """Return the number of ids and their CRC-32. They show whether a rebuilt prompt is the one that was sampled from."""
    return [len(prompt), zlib.crc32(array("q", prompt))]
