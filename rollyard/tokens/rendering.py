"""The conversation's text with a placeholder for every sampled turn, cut at the placeholders.

What a template does with a turn shows in them: whether it is still there, with or without its thoughts, and what stands
around it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rollyard.errors import TaskError
from rollyard.tokens.template import ChatTemplate, Message
from rollyard.tokens.tool_calls import ToolCall
from rollyard.tokens.turn import THINK_ENDS, SampledTurn, harmony

THOUGHTS, BODY, CALL = "t", "b", "c"
"""Parts of a turn. A turn with calls is shown by its text, or by its calls where the template insists on them."""

CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass
class Answer:
    """A sampled turn among the messages."""

    number: int
    turn: SampledTurn
    calls: tuple[ToolCall, ...] = ()
    """Known once the turn has been parsed."""

    def call_ids(self) -> list[str]:
        """The model's own where it fits, else nine digits: Mistral's template takes exactly nine letters or digits."""
        made = (f"{self.number % 100_000:05d}{k % 10_000:04d}" for k in range(len(self.calls)))
        said = (call.id if call.id is not None and CALL_ID.fullmatch(call.id) else None for call in self.calls)
        return [its or ours for its, ours in zip(said, made, strict=True)]


@dataclass(frozen=True)
class Seen:
    """A sampled turn as the template shows it."""

    number: int
    parts: str


@dataclass(frozen=True)
class Rendering:
    """texts[i] stands before turns[i], texts[-1] behind them all."""

    texts: list[str]
    turns: list[Seen]


class Renderer:
    """Renders one conversation, again and again."""

    def __init__(self, template: ChatTemplate, tools: Sequence[dict[str, Any]]) -> None:
        self._template = template
        self._tools = list(tools)
        self._harmony = harmony(template)
        self._structured = False
        """Whether the template refused tool results that follow no structured call; then all calls are shown so."""
        # letters and digits alone, so that no template trims, escapes or splits it
        self._nonce = f"sampled{secrets.token_hex(8)}turn"
        self._placeholder = re.compile(rf"{self._nonce}(\d+)([{THOUGHTS}{BODY}{CALL}])end")
        self._ends = re.compile("|".join(re.escape(template.decode([i])) for i in template.stop_ids) or r"\Z")

    def render(self, messages: Sequence[Message | Answer]) -> Rendering:
        """Raises TaskError when the template refuses the conversation."""
        try:
            return self._read(self._text(messages))
        except TaskError:
            if self._structured or not any(isinstance(m, Answer) and m.calls for m in messages):
                raise
        self._structured = True
        return self._read(self._text(messages))

    def _text(self, messages: Sequence[Message | Answer]) -> str:
        shown = [self._message(m) if isinstance(m, Answer) else m for m in messages]
        return self._template.render(shown, self._tools, True)

    def _message(self, answer: Answer) -> Message:
        thinks, calls = answer.turn.rest is not None, self._structured and bool(answer.calls)
        message: Message = {"role": "assistant"}
        body = "" if calls else self._mark(answer, BODY)
        if not self._harmony:
            thoughts = f"{self._mark(answer, THOUGHTS)}\n{THINK_ENDS}{answer.turn.space}" if thinks else ""
            message["content"] = thoughts + body
        else:
            if thinks:
                message["thinking"] = self._mark(answer, THOUGHTS)
            if body:
                message["content"] = body
        if calls:
            message["tool_calls"] = [self._call(answer, k) for k in range(len(answer.calls))]
        return message

    def _call(self, answer: Answer, k: int) -> dict[str, Any]:
        arguments = {self._mark(answer, CALL): ""} if k == 0 else {}
        function = {"name": answer.calls[k].name, "arguments": arguments}
        return {"id": answer.call_ids()[k], "type": "function", "function": function}

    def _mark(self, answer: Answer, part: str) -> str:
        return f"{self._nonce}{answer.number}{part}end"

    def _read(self, text: str) -> Rendering:
        texts, turns, start = [], [], 0
        for first, last, seen in self._turns(text):
            texts.append(text[start:first])
            turns.append(seen)
            start = self._end_of_calls(text, last) if seen.parts.endswith(CALL) else last
        return Rendering([*texts, text[start:]], turns)

    def _turns(self, text: str) -> Iterator[tuple[int, int, Seen]]:
        """Where each turn begins and ends. Its thoughts and what follows them are one turn, whatever stands between."""
        marks = [(m.start(), m.end(), int(m[1]), m[2]) for m in self._placeholder.finditer(text)]
        joined = False
        for this, then in pairwise([*marks, (0, 0, -1, "")]):
            if joined:
                joined = False
                continue
            joined = this[2] == then[2] and this[3] == THOUGHTS != then[3]
            yield this[0], (then if joined else this)[1], Seen(this[2], this[3] + (then[3] if joined else ""))

    def _end_of_calls(self, text: str, position: int) -> int:
        """What the template writes of the calls, the turn's ids say already: the rest begins with the turn's end."""
        end = self._ends.search(text, position)
        if end is None:
            raise TaskError(
                "the model's chat template ends a turn with tool calls by none of the tokens that end a turn"
            )
        return end.start()
