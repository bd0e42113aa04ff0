"""Records the turns of a session as ids, in two histories: of chats and of prompts. The turns make up the session's
trajectory."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollyard.core.errors import TemplateUnusable
from rollyard.gateway.requests.call_errors import bad_request
from rollyard.gateway.requests.chat_request import (
    ChatRequest,
    ChatResponse,
    ChatToolCall,
    TokenLogprob,
    assistant_message,
)
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.chat_branch import ChatBranch
from rollyard.gateway.session.chat_to_ids import ChatHistory, ParserFor, PreparedChat
from rollyard.gateway.session.prompt_history import PreparedPrompt, PromptBranch, PromptHistory
from rollyard.gateway.session.stored_call import ReadAnswer, StoredCall, StoredPrompt, StoredTurn, checksum
from rollyard.gateway.session.stored_responses import StoredResponses
from rollyard.gateway.session.token_logprobs import token_logprobs, up_to_length
from rollyard.kinds.base import evolve
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import Constraint, has_form
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.tool_calls import ParsedTurn, ToolCallParser, parse_safely, plain_turn
from rollyard.trajectory import Segment, Turn


@dataclass(frozen=True)
class RecordedTurn:
    response: ChatResponse
    """The response for the caller."""
    previous: int | None
    """Index of the turn before this one on its branch; None if there is none."""
    stored: StoredTurn


class RecordedTurns:
    """The turns of one session. Two threads must not use this object at the same time."""

    def __init__(self, template: ChatTemplate, parser_for: ParserFor, constraint: str | None = None) -> None:
        """`parser_for`: makes the parser of a call's turns. `constraint`: name for turns whose call asks for no form, if
        the session's own sampling constrains them."""
        self.chats = ChatHistory(template, parser_for)
        self.prompts = PromptHistory(template)
        self.responses = StoredResponses()
        self.tokens = 0
        """Tokens of all segments together, prompts included."""
        self.unread = 0
        """Number of turns with a tool call that could not be read."""
        self._template = template
        self._constraint = constraint
        self._turns: list[tuple[ChatBranch | PromptBranch, Turn]] = []
        self._last: dict[ChatBranch | PromptBranch, int] = {}
        """Branch -> index of its last turn."""

    @property
    def count(self) -> int:
        return len(self._turns)

    def segments(self) -> list[Segment]:
        return [segment for branch in self._branches() for segment in branch.segments()]

    def turns(self) -> list[Turn]:
        """Turns in the order in which they ended, each with the index of its segment."""
        first, so_far = {}, 0
        for branch in self._branches():
            first[id(branch)] = so_far
            so_far += branch.segment_count
        own = {id(branch): iter(branch.turns) for branch in self._branches()}
        ordered = [(branch, next(own[id(branch)])) for branch, _ in self._turns]
        return [evolve(turn, segment=first[id(b)] + turn.segment) for b, turn in ordered]

    def breaks(self) -> dict[str, int]:
        """Number of times that a call could not continue a segment, by cause."""
        counts: dict[str, int] = {}
        for broken in (broken for branch in self._branches() for broken in branch.breaks):
            counts[broken.cause.value] = counts.get(broken.cause.value, 0) + 1
        return counts

    def check_form(
        self, constraint: Constraint | None, parser: ToolCallParser | None, sampled: Sampled, stops: Sequence[str]
    ) -> None:
        """Raise GatewayError if a complete turn lacks its form. Engines ignore parameters that they do not know."""
        if constraint is None or sampled.finish_reason != "stop":
            return
        text = self._template.decode(_ids_without_stop(sampled, self._template.stop_ids))
        called = parser is not None and bool(parse_safely(parser, text).calls)
        met = called or (constraint.kind != "tool_calls" and has_form(constraint, text))
        if not met and _truncate_at_stop(text, stops)[1] is None:
            raise bad_request(
                f"the model's engine ignored the form that was asked for ({constraint.name}): it must be vLLM 0.11 or "
                "later, SGLang, or the embedded engine",
                code="constraint_ignored",
            )

    def add_turn(
        self,
        request: ChatRequest,
        parser: ToolCallParser | None,
        prepared: PreparedChat,
        sampled: Sampled,
        stops: Sequence[str],
        seconds: float,
    ) -> RecordedTurn:
        """Record the turn as ids."""
        text = _append_ids(prepared, sampled)
        opened = prepared.branch.conversation.last.turn.opened
        answer, wanted = _read_answer(text, opened, request, parser, stops, prepared.branch.calls), request.overrides
        turn = StoredTurn.of(sampled, answer, seconds, wanted.constraint)
        return self._add_chat(prepared, text, turn, wanted.top_logprobs)

    def add_continuation(
        self,
        wanted: SamplingOverrides,
        prepared: PreparedPrompt,
        sampled: Sampled,
        stops: Sequence[str],
        seconds: float,
    ) -> RecordedTurn:
        """Record the continuation."""
        content, stop = _truncate_at_stop(self._content(sampled), stops)
        turn = StoredTurn.of(sampled, ReadAnswer(content, stop=stop), seconds, wanted.constraint)
        return self._add_prompt(prepared, turn, wanted.top_logprobs)

    def restore(self, stored: StoredCall) -> list[RecordedTurn]:
        """Add a stored call. The calls must be added in the order in which they were recorded.

        Raises TaskError or TemplateUnusable if the call's prompt does not have the same ids as then.
        """
        more, top = len(stored.turns) - 1, stored.top_logprobs
        if isinstance(stored.call, StoredPrompt):
            prompt = self.prompts.restore(stored.call)
            prompts = [prompt, *self.prompts.siblings(prompt, more)]
            return [self._add_prompt(one, turn, top) for one, turn in zip(prompts, stored.turns, strict=True)]
        chat = self.chats.restore(stored.call)
        if checksum(chat.prompt) != stored.prompt:
            raise TemplateUnusable("the chat template or the tokenizer is another one than when the call was made")
        chats = [chat, *self.chats.siblings(chat, more)]
        return [
            self._add_chat(one, _append_ids(one, turn.sampled), turn, top)
            for one, turn in zip(chats, stored.turns, strict=True)
        ]

    def link_response(self, request: ChatRequest, turn: int) -> None:
        """Link the response id of a repeated call to the turn that was recorded for the call."""
        branch, _ = self._turns[turn]
        if request.response_id and isinstance(branch, ChatBranch):
            self.responses.add(request.response_id, branch, request.own_messages)

    def _add_chat(self, prepared: PreparedChat, whole: str, turn: StoredTurn, top_logprobs: int | None) -> RecordedTurn:
        """Record a turn whose ids are in its conversation. `whole`: text of the turn, with the caller's beginning."""
        begun, sampled, answer = prepared.continued_text, turn.sampled, turn.answer
        self.unread += answer.error is not None
        given = tuple(
            ChatToolCall(id, c.name, json.dumps(c.arguments, ensure_ascii=False))
            for id, c in zip(answer.call_ids, answer.calls, strict=False)
        )
        message = assistant_message(answer.content, [(c.id, c.name, c.arguments) for c in given])
        spoken = answer.content if answer.spoken is None else answer.spoken
        kept = ParsedTurn(spoken, tuple(answer.calls[: len(given)]), answer.error, answer.thoughts, answer.content)
        self.chats.record(prepared, kept, message, answer.stop or "")
        if prepared.response_id:
            self.responses.add(prepared.response_id, prepared.branch, prepared.own_messages)
        text, content = whole.removeprefix(begun), answer.content.removeprefix(begun.lstrip())  # the caller has `begun`
        if turn.constraint is not None:  # an engine may apply the form after thoughts; the caller parses the rest
            content = spoken
        finish = "tool_calls" if given else _finish_reason(sampled, answer.stop)
        return self._append_turn(prepared, turn, text, prepared.results, top_logprobs, content, given, finish)

    def _add_prompt(self, prepared: PreparedPrompt, turn: StoredTurn, top_logprobs: int | None) -> RecordedTurn:
        sampled, answer = turn.sampled, turn.answer
        self.prompts.record(prepared, sampled, self._template.decode(sampled.token_ids))
        finish = _finish_reason(sampled, answer.stop)
        return self._append_turn(prepared, turn, self._content(sampled), [], top_logprobs, answer.content, (), finish)

    def _content(self, sampled: Sampled) -> str:
        return self._template.decode(_ids_without_stop(sampled, self._template.stop_ids))

    def _append_turn(
        self,
        prepared: PreparedChat | PreparedPrompt,
        stored: StoredTurn,
        text: str,
        results: Sequence[str],
        top_logprobs: int | None,
        content: str,
        given: tuple[ChatToolCall, ...],
        finish: str,
    ) -> RecordedTurn:
        """Append a turn. `results`: the tool results for the branch's previous turn. `content`, `given` and `finish` are
        for the caller."""
        branch, sampled, answer = prepared.branch, stored.sampled, stored.answer
        if results and branch.turns:
            branch.turns[-1] = evolve(branch.turns[-1], tool_results=list(results))
        counts = len(prepared.prompt), len(sampled.token_ids)
        turn = Turn(
            segment=branch.segment_count - 1,
            prompt_length=counts[0],
            response_length=counts[1],
            text=text,
            finish_reason=sampled.finish_reason,
            tool_calls=[{"name": c.name, "arguments": c.arguments} for c in answer.calls],
            timings={"model": round(stored.seconds, 6), "tools": 0.0},
            constraint=stored.constraint or self._constraint,
        )
        branch.turns.append(turn)
        self._turns.append((branch, turn))
        self.tokens = sum(branch.token_count for branch in self._branches())
        previous, number = self._last.get(branch), len(self._turns) - 1
        self._last[branch] = number
        logprobs = self._logprobs(
            top_logprobs, sampled, _truncate_at_stop(text, [answer.stop])[0] if answer.stop else None
        )
        return RecordedTurn(
            ChatResponse(content, given, finish, *counts, answer.stop, logprobs, number), previous, stored
        )

    def _logprobs(self, top: int | None, sampled: Sampled, before_stop: str | None) -> tuple[TokenLogprob, ...]:
        """Return the logprobs that a call wants. `before_stop`: text before the stop string; None without a stop string."""
        if top is None:
            return ()
        found = token_logprobs(self._template, sampled)
        return tuple(found if before_stop is None else up_to_length(found, len(before_stop.encode("utf-8", "replace"))))

    def _branches(self) -> list[ChatBranch | PromptBranch]:
        return [*self.chats.branches, *self.prompts.branches]


def _append_ids(prepared: PreparedChat, sampled: Sampled) -> str:
    """Append the turn's ids to its conversation. Return the turn's text, with the caller's beginning."""
    lead, none = prepared.continued_ids, [None] * len(prepared.continued_ids)
    return prepared.branch.conversation.add_sampled(
        [*lead, *sampled.token_ids],
        [*none, *sampled.logprobs],
        [*none, *sampled.weights_versions],
        sampled.finish_reason,
    )


def _read_answer(
    whole: str,
    opened: str,
    request: ChatRequest,
    parser: ToolCallParser | None,
    stops: Sequence[str],
    taken: Collection[str],
) -> ReadAnswer:
    """Read the text of a turn, which begins with the caller's beginning.

    A call keeps the id that the model wrote, because some templates show it (Kimi). `taken`: ids of earlier calls.
    """
    before_stop, stop = _truncate_at_stop(whole.removeprefix(request.continued_text), stops)
    shown = request.continued_text + before_stop
    turn = parse_safely(parser, shown, opened) if parser is not None else plain_turn(shown, opened)
    given = turn.calls if request.overrides.parallel_tool_calls else turn.calls[:1]
    visible = turn.content if turn.shown is None else turn.shown.removeprefix(opened).lstrip()
    content = shown.strip() if turn.error is not None and not given else visible
    ids: list[str] = []
    for call in given:
        new = call.id is not None and call.id not in taken and call.id not in ids
        ids.append(str(call.id) if new else f"call_{secrets.token_hex(12)}")
    return ReadAnswer(content, turn.calls, ids, turn.error, stop, turn.thoughts, turn.content)


def _ids_without_stop(sampled: Sampled, stop_ids: Sequence[int]) -> list[int]:
    """Return the sampled ids without a stop id at their end."""
    ended = bool(sampled.token_ids) and sampled.token_ids[-1] in stop_ids
    return sampled.token_ids[:-1] if ended else sampled.token_ids


def _finish_reason(sampled: Sampled, stop: str | None) -> str:
    """Return the finish reason for the caller. If there is a stop string, the reason is "stop" even if the turn has
    its greatest length: after a turn has continued on another endpoint, its text may go on after the stop string."""
    return "length" if sampled.finish_reason == "length" and stop is None else "stop"


def _truncate_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return (text before the first stop string, this stop string), or (whole text, None) without a stop string."""
    at, stop = min(((text.find(stop), stop) for stop in stops if stop in text), default=(len(text), None))
    return text[:at], stop
