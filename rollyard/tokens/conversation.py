"""A conversation as token ids. Sampled ids stay as they are; only the text outside sampled turns is tokenised.

For each prompt the model's template renders the whole conversation, with the sampled turns in the fields that the
template reads. If the rendering goes on from the rendering of the previous prompt and shows the last turn, only the text
after this turn is tokenised and appended. The template may spell the turn in another way than the model.

Else the prefix is broken. The break is recorded in `breaks`, and a new segment (a sequence of ids that is trained on as
one sample) begins with the whole rendering. Where the rendering shows a sampled turn, the segment gets the sampled ids.
In both cases the text around sampled turns is the rendering's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.sampled_turn import sampled_turn
from rollyard.tokens.segment_builder import Break, BreakCause, SegmentBuilder
from rollyard.tokens.template_rendering import MarkedRendering, Renderer, SampledMessage
from rollyard.tokens.tool_calls import ToolCall, ToolCallParser
from rollyard.tokens.turn_positions import locate_turns
from rollyard.trajectory import Segment

__all__ = ["Break", "BreakCause", "Conversation"]

BEFORE = 256
"""Number of characters of a rendering that are kept with the turn sampled after it."""


@dataclass(frozen=True)
class _NextPrompt:
    rendered: str
    pending: list[int]
    """Ids at the end of the prompt. These ids are added to the segment when a turn has been sampled."""


class Conversation:
    """One conversation. Messages are added as text, sampled turns as ids. The results are prompts and segments."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        opened_by: Break | None = None,
        parser: ToolCallParser | None = None,
    ) -> None:
        """`opened_by`: why this conversation does not continue an earlier one. This break is the first in `breaks`.

        `parser`: reads the calls of the turns; None if nothing in a turn counts as a call.
        """
        self.breaks: list[Break] = [opened_by] if opened_by is not None else []
        self.parser = parser
        self._template = template
        self._renderer = Renderer(template, tools, parser)
        self._messages: list[Message | SampledMessage] = list(messages)
        self._sampled: list[SampledMessage] = []
        self._builders = [SegmentBuilder(opened_by=opened_by)]
        self._settled_count = 0
        """Number of messages up to and including the last sampled turn. The messages after it may still be replaced."""
        self._next: _NextPrompt | None = None
        """The next prompt; None if it must be rendered first."""

    @property
    def segment_count(self) -> int:
        return sum(builder.prompt_length is not None for builder in self._builders)

    @property
    def token_count(self) -> int:
        """Number of tokens in all segments, including a new one in which no turn was sampled yet."""
        return sum(len(builder.ids) for builder in self._builders)

    def prompt_ids(self, context: int | None = None) -> list[int]:
        """Return the ids of the next prompt.

        Raises TaskError if the template refuses the conversation, and TemplateUnusable if the template fails. Raises
        ContextExceeded, before anything is tokenised, if the text cannot fit into `context` tokens.
        """
        pending = self._next_prompt(context).pending  # this may open a segment
        return self._builders[-1].ids + pending

    def add_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        weights_version: str | Sequence[str | None],
        finish_reason: str,
    ) -> str:
        """Append the answer that the model sampled after `prompt_ids()`. Return the answer's text without the token
        that ended the turn.

        Logprob and version are None for an id that the caller itself put at the beginning of the answer.
        `weights_version`: one version for all ids, or one for each id. Raises ValueError if the lengths differ.
        """
        versions = [weights_version] * len(ids) if isinstance(weights_version, str) else list(weights_version)
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} ids, {len(logprobs)} logprobs and {len(versions)} versions: one each")
        prompt, self._next = self._next_prompt(), None
        rendered, builder = prompt.rendered, self._builders[-1]
        turn = sampled_turn(self._template, ids, builder.ids + prompt.pending)
        builder.append_prompt(prompt.pending)
        parsed = self._renderer.read(turn.text, turn.opened)
        answer = SampledMessage(len(self._sampled), turn, parsed, rendered[-BEFORE:], self._call_count())
        builder.append_sampled(answer, rendered, logprobs, versions, finish_reason)
        self._append(answer)
        return turn.text

    @property
    def last(self) -> SampledMessage:
        """Last turn, which can be added to another conversation by `add_recalled`. Raises IndexError if there is none."""
        answer = self._messages[self._settled_count - 1] if self._settled_count else None
        if not isinstance(answer, SampledMessage):
            raise IndexError("nothing was sampled yet")
        return answer

    def last_sampled(self) -> tuple[list[int], list[float | None], list[str | None]]:
        """Return the ids of the last turn with their logprobs and weights versions. Call this before the next prompt is
        made."""
        builder = self._builders[-1]
        start = len(builder.ids) - len(self.last.turn.ids)
        return builder.ids[start:], builder.logprobs[start:], builder.weights_version[start:]

    def ids_before_last(self, start: int) -> list[int]:
        """Return the ids of the present segment from `start` on, without those of the last turn. Call as `last_sampled`."""
        builder = self._builders[-1]
        return builder.ids[start : len(builder.ids) - len(self.last.turn.ids)]

    def last_calls(self) -> list[tuple[ToolCall, str]]:
        """Return the calls of the last turn, each with its id in the template."""
        ids = self.last.call_ids(self._template.fields.call_ids)
        return list(zip(self.last.parsed.calls, ids, strict=True))

    def add_recalled(self, answer: SampledMessage) -> None:
        """Append a turn of another conversation. The turn's ids are context here: they are not trained on.

        Call this before a turn is sampled in this conversation.
        """
        self._append(replace(answer, number=len(self._sampled), calls_before=self._call_count()))
        self._invalidate()

    def replace_unanswered(self, messages: Sequence[Message]) -> None:
        """Replace all messages after the last turn by these messages."""
        self._messages[self._settled_count :] = messages
        self._invalidate()

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Append messages that are not results of calls, such as a user's message."""
        self._messages += messages
        self._invalidate()

    def add_results(self, results: Sequence[str]) -> None:
        """Append one result for each call of the last turn, in the same order."""
        if len(self._messages) != self._settled_count or len(self.last.parsed.calls) != len(results):
            raise ValueError("results follow a sampled turn, one for each of its calls")
        self.add_messages(
            [
                {"role": "tool", "name": call.name, "tool_call_id": id, "content": result}
                for (call, id), result in zip(self.last_calls(), results, strict=True)
            ]
        )

    def add_reply(self, role: str, text: str) -> None:
        """Append the message of an environment. If the template refuses a user's message behind the results of calls, the
        text is appended to the last result."""
        last = self._messages[-1] if len(self._messages) > self._settled_count else None
        may_follow = role != "user" or self._template.fields.user_behind_results
        if may_follow or not isinstance(last, dict) or last["role"] != "tool":
            return self.add_messages([{"role": role, "content": text}])
        self._messages[-1] = {**last, "content": f"{last['content']}\n{text}"}
        self._invalidate()

    @property
    def error_role(self) -> str:
        """Role of the answer to a malformed call. Some templates write a tool message only after a call."""
        if self.parser is None or not self._template.fields.lone_results:
            return "user"
        return self.parser.error_role

    def sibling(self) -> Conversation:
        """Return a conversation with the same next prompt, for another turn after this prompt.

        The whole prompt is context in the sibling's segment, and the sibling has no breaks. Call this after `prompt_ids`.
        """
        made, builder = copy.copy(self), self._builders[-1]
        made.breaks, made._messages, made._sampled = [], list(self._messages), list(self._sampled)
        made._builders, made._renderer = [builder.as_context()], copy.copy(self._renderer)
        return made

    def segments(self) -> list[Segment]:
        """Return the segments in order. Each break begins a new segment. A segment ends with its last sampled token."""
        return [
            builder.segment(builder.prompt_length) for builder in self._builders if builder.prompt_length is not None
        ]

    def _next_prompt(self, context: int | None = None) -> _NextPrompt:
        if self._next is None:
            rendered = self._renderer.whole(self._messages)
            self._template.token_length.check(rendered, context)
            self._next = _NextPrompt(rendered, self._ids(self._text_after_segment(rendered)))
        return self._next

    def _call_count(self) -> int:
        """Return the number of calls so far."""
        return sum(
            len(m.parsed.calls if isinstance(m, SampledMessage) else m.get("tool_calls") or ()) for m in self._messages
        )

    def _append(self, answer: SampledMessage) -> None:
        self._messages.append(answer)
        self._sampled.append(answer)
        self._settled_count = len(self._messages)

    def _invalidate(self) -> None:
        """Discard the next prompt after a change of messages. A segment that was opened only for this prompt is
        discarded too."""
        self._next = None
        if len(self._builders) > 1 and self._builders[-1].prompt_length is None:
            self._builders.pop()
            self.breaks.pop()

    def _text_after_segment(self, rendered: str) -> str:
        """Return the text of a rendering after the last segment. A new segment is opened if the prefix is broken."""
        builder = self._builders[-1]
        new, began = None, builder.prompt_length is not None
        if began and (new := builder.text_after(rendered)) is None:
            new = builder.text_after_end(rendered, self._renderer)
        if new is not None:
            return new
        marked = self._renderer.marked(self._messages) if self._sampled else None
        if began and marked is not None:
            new = builder.text_after_fields(rendered, marked, self._renderer)
        return new if new is not None else self._open_segment(rendered, marked)

    def _open_segment(self, rendered: str, marked: MarkedRendering | None) -> str:
        """Open a segment with the beginning of a rendering.

        Sampled turns that the rendering shows keep their ids. The beginning ends with the last of these turns. Return the
        rest of the rendering.
        """
        before = self._builders[-1]
        if before.prompt_length is None:  # a segment without a sampled turn has no prefix to break
            builder = self._builders[-1] = SegmentBuilder(opened_by=before.opened_by)
        else:
            broken = Break(len(self._sampled), *before.difference(rendered, marked, self._sampled))
            self.breaks.append(broken)
            builder = SegmentBuilder(opened_by=broken)
            self._builders.append(builder)
        position = 0
        located = locate_turns(rendered, marked, self._sampled, self._template, self._renderer) if marked else ()
        for placed in located:
            turn = self._sampled[placed.number].turn
            # These ids are trained on in the segment in which they were sampled. In this segment they are context.
            builder.append_prompt(self._ids(rendered[position : placed.start]))
            builder.append_prompt((turn.ids if placed.ended else turn.content_ids)[placed.first :])
            builder.turns.append(placed)
            position = placed.end
        return rendered[position:]

    def _ids(self, text: str) -> list[int]:
        ids = self._builders[-1].ids
        return self._renderer.ids(text, ids[-1] if ids else None)
