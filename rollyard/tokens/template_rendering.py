"""Renderings of a conversation by a chat template.

The real rendering has all texts, and the model gets it. For the marked rendering, one or two placeholders replace each
sampled turn: one for the turn's text or calls, and sometimes one for its thoughts. The marked rendering shows where the
sampled turns are in the real rendering, and how the template changed them. It is never tokenised.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.sampled_turn import CHANNEL, MESSAGE, MESSAGE_ENDS, THINK_ENDS, SampledTurn
from rollyard.tokens.tool_calls import ToolCall

THOUGHTS, BODY, CALL = "t", "b", "c"
"""Letters that tell for which part of a turn a placeholder stands: thoughts, text, calls."""
MANGLED = 9
"""Each placeholder contains the nonce, a random word. The template has changed a placeholder if the first or the last
MANGLED characters of the nonce appear outside whole placeholders."""

CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass
class SampledMessage:
    """Sampled turn in the list of messages."""

    number: int
    turn: SampledTurn
    calls: tuple[ToolCall, ...] = ()
    """Calls of the turn; empty until the turn has been parsed."""
    content: str = ""
    """Text of the turn outside its calls."""

    def call_ids(self) -> list[str]:
        """Return the ids of the calls. Mistral's template accepts only ids of nine letters or digits.

        An id that the model wrote is used if it has this form; else nine digits are used.
        """
        made = (f"{self.number % 100_000:05d}{k % 10_000:04d}" for k in range(len(self.calls)))
        given = (call.id if call.id is not None and CALL_ID.fullmatch(call.id) else None for call in self.calls)
        return [its or ours for its, ours in zip(given, made, strict=True)]


@dataclass(frozen=True)
class SeenTurn:
    """Sampled turn in a marked rendering. `parts`: the parts whose placeholders the rendering has, in order."""

    number: int
    parts: str


@dataclass(frozen=True)
class MarkedRendering:
    """Rendering with placeholders. `texts[i]` is the text before `turns[i]`, `texts[-1]` the text after the last turn."""

    texts: list[str]
    turns: list[SeenTurn]
    mangled: bool
    """Whether the template cut, changed or split a placeholder."""


class Renderer:
    """Renders one conversation, again for each prompt."""

    def __init__(self, template: ChatTemplate, tools: Sequence[dict[str, Any]]) -> None:
        self._template = template
        self._tools = list(tools)
        self._harmony = template.in_channels
        self._structured = False
        """True: turns with calls are rendered from the field `tool_calls`. False: from their text.

        It becomes True if the template refuses a conversation in which calls are written as text.
        """
        # only letters and digits, because a template may trim, escape or split other characters
        self._nonce = f"{secrets.token_hex(8)}turn"
        self._placeholder = re.compile(rf"{self._nonce}(\d+)([{THOUGHTS}{BODY}{CALL}])end")
        self._ends = re.compile("|".join(map(re.escape, template.ends.values())))

    def whole(self, messages: Sequence[Message | SampledMessage]) -> str:
        """Return the real rendering. Raises TaskError and TemplateUnusable as `ChatTemplate.render` does."""
        try:
            return self._text(messages, real=True)
        except (TaskError, TemplateUnusable):
            if self._structured or not any(isinstance(m, SampledMessage) and m.calls for m in messages):
                raise
        self._structured = True
        try:
            return self._text(messages, real=True)
        except (TaskError, TemplateUnusable):
            self._structured = False
            raise

    def marked(self, messages: Sequence[Message | SampledMessage]) -> MarkedRendering | None:
        """Return the marked rendering; None if the template refuses messages with placeholders."""
        try:
            return self._read(self._text(messages, real=False))
        except (TaskError, TemplateUnusable):
            return None

    def ids(self, text: str, behind: int | None) -> list[int]:
        """Tokenise a piece of the real rendering. No other code turns rendered text into ids.

        `behind`: the id after which the piece stands; None at the start of the prompt. Raises ValueError if the text
        has a placeholder.
        """
        if self._nonce in text:
            raise ValueError("a placeholder is no text for a model")
        return self._template.encode_behind(behind, text)

    def _text(self, messages: Sequence[Message | SampledMessage], *, real: bool) -> str:
        show = self._full_message if real else self._message
        return self._template.render(
            [show(m) if isinstance(m, SampledMessage) else m for m in messages], self._tools, True
        )

    def _full_message(self, answer: SampledMessage) -> Message:
        """Return the message for the real rendering."""
        turn, calls = answer.turn, self._structured and bool(answer.calls)
        message: Message = {"role": "assistant"}
        if not self._harmony:
            message["content"] = answer.content if calls else turn.text
        else:
            thoughts, rest = turn.split_thoughts()
            if turn.thinks:  # the template writes the channels itself, and refuses texts with channel markers
                message["thinking"] = _without_marks(thoughts.removesuffix(MESSAGE_ENDS).partition(MESSAGE)[2])
            if not calls:
                message["content"] = _without_marks(rest.rpartition(MESSAGE)[2])
        if calls:
            arguments = [call.arguments for call in answer.calls]
            message["tool_calls"] = [self._call(answer, k, arguments[k]) for k in range(len(arguments))]
        return message

    def _message(self, answer: SampledMessage) -> Message:
        """Return the message for the marked rendering."""
        thinks, calls = answer.turn.thinks, self._structured and bool(answer.calls)
        message: Message = {"role": "assistant"}
        body = answer.content if calls else self._mark(answer, BODY)
        if not self._harmony:
            rest = answer.turn.split_thoughts()[1]
            space = rest[: len(rest) - len(rest.lstrip())]
            thoughts = f"{self._mark(answer, THOUGHTS)}\n{THINK_ENDS}{space}" if thinks and not calls else ""
            message["content"] = thoughts + body
        else:
            if thinks:
                message["thinking"] = self._mark(answer, THOUGHTS)
            if not calls:
                message["content"] = body
        if calls:
            marks = [{self._mark(answer, CALL): ""}, *({} for _ in answer.calls[1:])]
            message["tool_calls"] = [self._call(answer, k, marks[k]) for k in range(len(marks))]
        return message

    def _call(self, answer: SampledMessage, k: int, arguments: dict[str, Any]) -> dict[str, Any]:
        function = {"name": answer.calls[k].name, "arguments": arguments}
        return {"id": answer.call_ids()[k], "type": "function", "function": function}

    def _mark(self, answer: SampledMessage, part: str) -> str:
        return f"{self._nonce}{answer.number}{part}end"

    def _read(self, text: str) -> MarkedRendering:
        texts, turns, start = [], [], 0
        for first, last, seen in self._turns(text):
            texts.append(text[start:first])
            turns.append(seen)
            start = self._end_of_calls(text, last) if seen.parts.endswith(CALL) else last
        texts.append(text[start:])
        rest = self._placeholder.sub("", text).lower()
        return MarkedRendering(texts, turns, self._nonce[:MANGLED] in rest or f"{self._nonce[-MANGLED:]}" in rest)

    def _turns(self, text: str) -> Iterator[tuple[int, int, SeenTurn]]:
        """Yield (begin, end, turn) for each sampled turn. If a placeholder of thoughts and the next placeholder belong
        to the same turn, they are yielded as one turn."""
        marks = [(m.start(), m.end(), int(m[1]), m[2]) for m in self._placeholder.finditer(text)]
        joined = False
        for this, then in pairwise([*marks, (0, 0, -1, "")]):
            if joined:
                joined = False
                continue
            joined = this[2] == then[2] and this[3] == THOUGHTS != then[3]
            yield this[0], (then if joined else this)[1], SeenTurn(this[2], this[3] + (then[3] if joined else ""))

    def _end_of_calls(self, text: str, position: int) -> int:
        """Return the position of the next stop token's text, or `position` if there is none. The calls of a
        turn end there."""
        end = self._ends.search(text, position)
        return end.start() if end is not None else position


def _without_marks(text: str) -> str:
    return text.replace(CHANNEL, "")
