"""Renderings of a conversation by a chat template.

The real rendering has all texts. A sampled turn is given in the fields that the template reads: thoughts, answer, calls.
So the text around sampled turns is the template's own, and the template's spelling of a turn may differ from the sampled
text. For the marked rendering, placeholders replace the fields of each sampled turn. It shows where the turns are in the
real rendering, and which parts of a turn the template wrote. It is never tokenised.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens import template_fields
from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.sampled_turn import CHANNEL, THINK_ENDS, SampledTurn
from rollyard.tokens.template_fields import NAMED, NINE, CallIds
from rollyard.tokens.tool_calls import ParsedTurn, ToolCall, ToolCallParser, parse_safely, parser_for, plain_turn

THOUGHTS, BODY, CALL = "t", "b", "c"
"""Letters that tell for which part of a turn a placeholder stands: thoughts, text, calls."""
MANGLED = 9
"""Each placeholder contains the nonce, a random word. The template has changed a placeholder if the first or the last
MANGLED characters of the nonce appear outside whole placeholders."""


@dataclass
class SampledMessage:
    """Sampled turn in the list of messages."""

    number: int
    turn: SampledTurn
    parsed: ParsedTurn
    """Thoughts, answer and calls of the turn, as the template gets them."""
    before: str = ""
    """End of the rendering after which the turn was sampled."""
    calls_before: int = 0
    """Number of calls in earlier messages of the conversation."""
    as_text: bool = field(default=False, compare=False)
    """Whether the template gets the calls as text, because it refuses them in the field `tool_calls`."""
    made: tuple[bool, Message] | None = field(default=None, init=False, compare=False, repr=False)
    """Message for the real rendering, with the value of `as_text` for which it was made. Each prompt needs it again."""

    def call_ids(self, form: CallIds = CallIds.ANY) -> list[str]:
        """Return the ids of the calls. An id that the model wrote is kept if the template accepts it."""
        return [self._call_id(k, call, form) for k, call in enumerate(self.parsed.calls)]

    def _call_id(self, k: int, call: ToolCall, form: CallIds) -> str:
        pattern = {CallIds.NINE: NINE, CallIds.NAMED: NAMED}.get(form)
        if call.id and (pattern is None or pattern.fullmatch(call.id)):
            return call.id
        return (
            f"functions.{call.name}:{self.calls_before + k}"
            if form is CallIds.NAMED
            else f"{self.number % 100_000:05d}{k % 10_000:04d}"
        )


@dataclass(frozen=True)
class SeenTurn:
    """Sampled turn in a marked rendering. `parts`: the parts whose placeholders the rendering has, in order."""

    number: int
    parts: str


@dataclass(frozen=True)
class MarkedRendering:
    """Rendering with placeholders. `texts[i]` is the text before the first placeholder of `turns[i]`, from the end of the
    previous turn on. `texts[-1]` is the text after the last turn."""

    texts: list[str]
    turns: list[SeenTurn]
    mangled: bool
    """Whether the template cut, changed or split a placeholder."""


class Renderer:
    """Renders one conversation, again for each prompt."""

    def __init__(
        self, template: ChatTemplate, tools: Sequence[dict[str, Any]], parser: ToolCallParser | None = None
    ) -> None:
        """`parser`: reads the turns; None if nothing in a turn counts as a call."""
        self._template = template
        self._tools = list(tools)
        self._parser = parser if parser is not None else parser_for(template)
        self._reads_calls = parser is not None
        # only letters and digits, because a template may trim, escape or split other characters
        self._nonce = f"{secrets.token_hex(8)}turn"
        self._placeholder = re.compile(rf"{self._nonce}(\d+)([{THOUGHTS}{BODY}{CALL}])end")
        self._ends = re.compile("|".join(re.escape(end) for end in template.ends.values() if end))

    def read(self, text: str, opened: str) -> ParsedTurn:
        """Read the thoughts, the answer and the calls of a turn. `opened`: `SampledTurn.opened`."""
        turn = parse_safely(self._parser, text, opened)
        return turn if self._reads_calls or not (turn.calls or turn.error) else plain_turn(text, opened)

    def whole(self, messages: Sequence[Message | SampledMessage]) -> str:
        """Return the real rendering. Raises TaskError and TemplateUnusable as `ChatTemplate.render` does."""
        try:
            return self._text(messages, real=True)
        except (TaskError, TemplateUnusable):
            answers = [m for m in messages if isinstance(m, SampledMessage) and m.parsed.calls and not m.as_text]
            if not self._template.fields.lone_results or not (unwritten := [m for m in answers if not self._writes(m)]):
                raise
            for message in unwritten:
                message.as_text = True
            try:
                return self._text(messages, real=True)
            except (TaskError, TemplateUnusable):
                for message in unwritten:
                    message.as_text = False
            raise

    def _writes(self, answer: SampledMessage) -> bool:
        """Return whether the template writes the calls of a turn if nothing but a question stands before it. Llama's template
        refuses several calls. Another conversation that a template refuses breaks one of its rules."""
        ids = answer.call_ids(self._template.fields.call_ids)
        results: list[Message] = [
            {"role": "tool", "name": call.name, "tool_call_id": id, "content": "Done."}
            for id, call in zip(ids, answer.parsed.calls, strict=True)
        ]
        try:
            self._text([{"role": "user", "content": "What now?"}, answer, *results], real=True)
        except (TaskError, TemplateUnusable):
            return False
        return True

    def marked(self, messages: Sequence[Message | SampledMessage]) -> MarkedRendering | None:
        """Return the marked rendering; None if the template refuses messages with placeholders."""
        try:
            return self._read(self._text(messages, real=False))
        except (TaskError, TemplateUnusable):
            return None

    def shows(self, answer: SampledMessage, form: str, *, thoughts: bool = True) -> bool:
        """Return whether a text is another spelling of a turn. White space around thoughts, answer and calls is spelling.

        `thoughts`: False for a turn whose thoughts the template left out.
        """
        given, parsed = self._given(answer), answer.parsed
        if given is None and self._bare(form).strip() == self._bare(answer.turn.text).strip():
            return True
        if given is None and parsed.error is not None:
            return False
        known = [replace(turn, thoughts=turn.thoughts if thoughts else None) for turn in (given or parsed, parsed)]
        if (header := getattr(self._parser, "header", "")) and (header in form) != (header in answer.turn.text):
            return False
        shown = self.read(form, answer.turn.opened if thoughts else "")
        return _parts(shown) in [_parts(turn) for turn in known]

    def ids(self, text: str, behind: int | None) -> list[int]:
        """Tokenise a piece of the real rendering. No other code turns rendered text into ids.

        `behind`: the id after which the piece stands; None at the start of the prompt. Raises ValueError if the text
        has a placeholder.
        """
        if self._nonce in text:
            raise ValueError("a placeholder is not text for a model")
        return self._template.encode_behind(behind, text)

    def end_in(self, text: str, position: int) -> int | None:
        """Return the position of the first token's text that ends turns, from a position on."""
        end = self._ends.search(text, position)
        return end.start() if end is not None else None

    def _text(self, messages: Sequence[Message | SampledMessage], *, real: bool) -> str:
        show = self._full_message if real else self._marked_message
        return self._template.render(
            [show(m) if isinstance(m, SampledMessage) else m for m in messages], self._tools, True
        )

    def _given(self, answer: SampledMessage) -> ParsedTurn | None:
        """Return what the template gets of a turn; None if it gets the turn's text as the content.

        The content has the thoughts too if the template reads no field of thoughts.
        """
        fields, parsed = self._template.fields, answer.parsed
        calls = parsed.calls if fields.calls and not self._as_text(answer) else ()
        thoughts = parsed.thoughts if fields.has_thoughts and not self._as_text(answer) else None
        if self._template.in_channels:  # it writes the channels itself, and refuses texts with channel markers
            content = _without_marks(parsed.content or (answer.turn.text if parsed.error and not calls else ""))
            thoughts = _without_marks(thoughts) if thoughts is not None else None
        elif not calls and thoughts is None and self._is_bare(answer):
            return None
        elif thoughts is None and parsed.thoughts is not None and parsed.shown is not None:
            content = parsed.shown.removeprefix(answer.turn.opened).lstrip()
        else:
            content = parsed.content
        if calls and not fields.calls_with_content:
            content = ""
        return ParsedTurn(content, calls, None, thoughts)

    def _as_text(self, answer: SampledMessage) -> bool:
        """Return whether the template gets a turn with calls as text."""
        fields, parsed = self._template.fields, answer.parsed
        one, beside = fields.one_call and len(parsed.calls) > 1, fields.drops_calls and parsed.content
        return bool(parsed.calls) and (answer.as_text or bool(fields.lone_results and (one or beside)))

    def _is_bare(self, answer: SampledMessage) -> bool:
        """Return whether a turn has no markers around its answer, or thoughts that the template takes as text."""
        turn, parsed = answer.turn, answer.parsed
        return parsed.thoughts is not None or bool(parsed.calls) or parsed.content.strip() == turn.text.strip()

    def _bare(self, text: str) -> str:
        """Return the text of a turn without the markers that the template itself writes around an answer."""
        before, after = self._template.fields.around_answer
        if before.strip() and text.lstrip().startswith(before.strip()):
            text = text.lstrip().removeprefix(before.strip())
        if after.strip() and text.rstrip().endswith(after.strip()):
            text = text.rstrip().removesuffix(after.strip())
        return text.removeprefix("" if before.strip() else before).removesuffix("" if after.strip() else after)

    def _full_message(self, answer: SampledMessage) -> Message:
        """Return the message for the real rendering."""
        if answer.made is None or answer.made[0] != answer.as_text:
            given = self._given(answer)
            if given is None:
                message = {"role": "assistant", "content": self._bare(answer.turn.text)}
            else:
                message = self._message(answer, given, [call.arguments for call in given.calls])
            answer.made = answer.as_text, message
        return answer.made[1]

    def _marked_message(self, answer: SampledMessage) -> Message:
        """Return the message for the marked rendering. It has the same fields and keys as the real message."""
        given, text = self._given(answer), self._bare(answer.turn.text)
        if given is None:
            _, closed, rest = text.rpartition(THINK_ENDS)
            if answer.parsed.thoughts is None or THINK_ENDS not in self._template.source:
                closed = ""
            return {"role": "assistant", "content": self._marked_content(answer, closed, rest)}
        mark = self._mark(answer, CALL)
        arguments = [dict.fromkeys(call.arguments, mark) for call in given.calls]
        if given.calls:  # the text before the name of an argument does not depend on the argument's type
            arguments[0] = {mark: mark}
        content = given.content
        if content.strip() or not (given.calls or given.thoughts):
            _, closed, rest = content.rpartition(THINK_ENDS)
            inside = given.thoughts is None and answer.parsed.thoughts is not None
            content = self._marked_content(answer, closed if inside else "", rest)
        thoughts = self._mark(answer, THOUGHTS) if given.thoughts else given.thoughts
        return self._message(answer, replace(given, content=content, thoughts=thoughts), arguments)

    def _marked_content(self, answer: SampledMessage, closed: str, rest: str) -> str:
        """Return a content with placeholders. `closed`: marker that ends thoughts within the content."""
        space = rest[: len(rest) - len(rest.lstrip())]
        thoughts = f"{self._mark(answer, THOUGHTS)}\n{closed}{space}" if closed else ""
        return thoughts + self._mark(answer, BODY)

    def _message(self, answer: SampledMessage, given: ParsedTurn, arguments: Sequence[dict[str, Any]]) -> Message:
        message: Message = {"role": "assistant", "content": given.content}
        if given.thoughts is not None:
            message[template_fields.THOUGHTS] = given.thoughts
        if given.calls:
            ids = answer.call_ids(self._template.fields.call_ids)
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": its}}
                for id, call, its in zip(ids, given.calls, arguments, strict=False)
            ]
        return message

    def _mark(self, answer: SampledMessage, part: str) -> str:
        return f"{self._nonce}{answer.number}{part}end"

    def _read(self, text: str) -> MarkedRendering:
        texts, turns, start = [], [], 0
        for first, last, seen in self._turns(text):
            texts.append(text[start:first])
            turns.append(seen)
            start = last
        texts.append(text[start:])
        rest = self._placeholder.sub("", text).lower()
        return MarkedRendering(texts, turns, self._nonce[:MANGLED] in rest or self._nonce[-MANGLED:] in rest)

    def _turns(self, text: str) -> Iterator[tuple[int, int, SeenTurn]]:
        """Yield (begin of the first placeholder, end, turn) for each sampled turn. A turn with calls ends where a token
        that ends turns follows, another turn with its last placeholder."""
        marks = [(m.start(), m.end(), int(m[1]), m[2]) for m in self._placeholder.finditer(text)]
        while marks:
            (first, last, number, part), *marks = marks
            parts = part
            # A call has a placeholder for each value. Another part that appears twice is the turn again.
            while marks and marks[0][2] == number and (marks[0][3] == CALL or marks[0][3] not in parts):
                (_, last, _, part), *marks = marks
                parts += part * (part not in parts)
            if part != BODY:
                found = self.end_in(text, last)
                last = last if found is None else found
            yield first, last, SeenTurn(number, parts)


def _parts(turn: ParsedTurn) -> tuple[str | None, str, tuple[ToolCall, ...]]:
    return turn.thoughts.strip() if turn.thoughts is not None else None, turn.content.strip(), turn.calls


def _without_marks(text: str) -> str:
    return text.replace(CHANNEL, "")
