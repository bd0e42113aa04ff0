"""One branch of a session's chats: an unbroken sequence of calls, each of which continues the one before."""

from __future__ import annotations

from bisect import bisect_left as bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollyard.kinds.base import evolve
from rollyard.tokens.chat_template import Message
from rollyard.tokens.conversation import Break, Conversation
from rollyard.tokens.template_rendering import SampledMessage
from rollyard.trajectory import Segment, Turn

Key = str
"""Digest of a message, of all messages before it, and of the tools."""


@dataclass(eq=False)
class ChatBranch:
    """One unbroken sequence of calls."""

    conversation: Conversation
    start: Key
    """Digest of the tools: the key before the first message."""
    tools: list[dict[str, Any]]
    keys: list[Key] = field(default_factory=list)
    """The key before the first message, then a key for each message up to the last sampled turn."""
    messages: list[Message] = field(default_factory=list)
    """Messages up to the last sampled turn, as the caller sees them."""
    first: int = 0
    """Number of messages before the first sampled turn."""
    calls: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The caller's id of a tool call -> (name, id in the template)."""
    busy: bool = True
    """True: a call of this branch is in flight. Another call that would continue this branch opens its own branch."""
    turns: list[Turn] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of messages up to the last sampled turn."""
        return len(self.messages)

    def common_prefix(self, keys: Sequence[Key]) -> int:
        """Return the number of equal messages at the beginning; -1 if the tools differ."""
        return bisect(range(min(len(keys), len(self.keys))), True, key=lambda i: keys[i] != self.keys[i]) - 1

    @property
    def segment_count(self) -> int:
        return self.conversation.segment_count

    @property
    def token_count(self) -> int:
        return self.conversation.token_count

    @property
    def breaks(self) -> Sequence[Break]:
        return self.conversation.breaks

    def sibling(self) -> ChatBranch:
        """Return a branch for another answer to the prompt that this branch has prepared."""
        return ChatBranch(
            self.conversation.sibling(), self.start, self.tools, list(self.keys), list(self.messages), self.first,
            dict(self.calls),
        )  # fmt: skip

    def segments(self) -> list[Segment]:
        return [_trim_to_first_sampled(segment) for segment in self.conversation.segments()]

    def with_given_ids(self, messages: Sequence[Message]) -> list[Message]:
        """Return a call's messages. If the caller renamed the calls of the last sampled turn, their results get the ids
        that the caller was given."""
        if not self.length:
            return list(messages)
        theirs, given = (m.get("tool_calls", ()) for m in (messages[self.length - 1], self.messages[-1]))
        renamed = {one["id"]: own["id"] for one, own in zip(theirs, given, strict=False)}
        return [
            *messages[: self.length],
            *({**m, "tool_call_id": renamed.get(m["tool_call_id"], m["tool_call_id"])} if "tool_call_id" in m else m
              for m in messages[self.length :]),
        ]  # fmt: skip

    def replace_unanswered(self, messages: Sequence[Message]) -> None:
        """Replace the messages after the last sampled turn by these messages of the caller."""
        self.conversation.replace_unanswered([self._with_own_call_ids(m) for m in messages])

    def add(self, messages: Sequence[Message]) -> None:
        self.conversation.add_messages([self._with_own_call_ids(m) for m in messages])

    def recall(self, answer: SampledMessage, message: Message) -> None:
        self.conversation.add_recalled(answer)
        self.learn_call_ids(message)

    def learn_call_ids(self, message: Message) -> None:
        """Record the caller's ids for the calls of the last turn. `message`: the turn as the caller sees it."""
        for one, (call, id) in zip(message.get("tool_calls", ()), self.conversation.last_calls(), strict=False):
            self.calls[one["id"]] = (call.name, id)

    def _with_own_call_ids(self, message: Message) -> Message:
        for one in message.get("tool_calls", ()):
            self.calls[one["id"]] = (one["function"]["name"], one["id"])
        if message["role"] != "tool" or message.get("tool_call_id") not in self.calls:
            return message
        name, id = self.calls[message["tool_call_id"]]
        return {**message, "name": name, "tool_call_id": id}


def _trim_to_first_sampled(segment: Segment) -> Segment:
    """Count the caller's ids at the beginning of a turn as prompt. The prompt then ends before the first sampled id."""
    first = segment.loss_mask.index(1) if 1 in segment.loss_mask else segment.prompt_length
    return segment if first == segment.prompt_length else evolve(segment, prompt_length=first)
