"""Records the turns of a session as ids, in two histories: of chats and of prompts. The turns make up the session's
trajectory."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from rollyard.gateway.requests.call_errors import bad_request
from rollyard.gateway.requests.chat_request import (
    ChatRequest,
    ChatResponse,
    ChatToolCall,
    TokenLogprob,
    assistant_message,
)
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.chat_to_ids import ChatBranch, ChatHistory, PreparedChat
from rollyard.gateway.session.prompt_history import PreparedPrompt, PromptBranch, PromptHistory
from rollyard.gateway.session.stored_responses import StoredResponses
from rollyard.gateway.session.token_logprobs import token_logprobs, up_to_length
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Segment, Turn
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.constraint import Constraint, has_form
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.sampled_turn import THINK_ENDS
from rollyard.tokens.tool_calls import ParsedTurn, ToolCallParser, parse_safely


class RecordedTurns:
    """The turns of one session. Two threads must not use this object at the same time."""

    def __init__(self, template: ChatTemplate, constraint: str | None = None) -> None:
        """`constraint`: name for turns whose call asks for no form, if the session's own sampling constrains them."""
        self.chats = ChatHistory(template)
        self.prompts = PromptHistory(template)
        self.responses = StoredResponses()
        self.tokens = 0
        """Tokens of all segments together, prompts included."""
        self._template = template
        self._constraint = constraint
        self._turns: list[tuple[ChatBranch | PromptBranch, Turn]] = []

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
    ) -> ChatResponse:
        """Record the turn as ids, and return the response for the caller."""
        conversation = prepared.branch.conversation
        lead, none = prepared.continued_ids, [None] * len(prepared.continued_ids)
        whole = conversation.add_sampled(
            [*lead, *sampled.token_ids],
            [*none, *sampled.logprobs],
            [*none, *sampled.weights_versions],
            sampled.finish_reason,
        )
        text = whole.removeprefix(request.continued_text)
        before_stop, stop = _truncate_at_stop(text, stops)
        shown = request.continued_text + before_stop
        turn = parse_safely(parser, shown) if parser is not None else ParsedTurn(shown.strip())
        calls = turn.calls if request.overrides.parallel_tool_calls else turn.calls[:1]
        content = shown.strip() if turn.error is not None and not calls else turn.content
        given = tuple(
            ChatToolCall(f"call_{secrets.token_hex(12)}", c.name, json.dumps(c.arguments, ensure_ascii=False))
            for c in calls
        )
        message = assistant_message(content, [(c.id, c.name, c.arguments) for c in given])
        self.chats.record(prepared, ParsedTurn(content, calls, turn.error), message, stop or "")
        if request.response_id:
            self.responses.add(request.response_id, prepared.branch, request.own_messages)
        content = content.removeprefix(request.continued_text.lstrip())  # the caller has this part already
        constraint = request.overrides.constraint
        if constraint is not None:  # an engine may apply the form after thoughts; the caller parses the rest
            content = content.rpartition(THINK_ENDS)[2].strip()
        self._append_turn(prepared.branch, prepared.prompt, sampled, text, turn, seconds, prepared.results, constraint)
        finish = "tool_calls" if given else _finish_reason(sampled, stop)
        logprobs = self._logprobs(request.overrides, sampled, before_stop if stop is not None else None)
        return ChatResponse(content, given, finish, len(prepared.prompt), len(sampled.token_ids), stop, logprobs)

    def add_continuation(
        self,
        wanted: SamplingOverrides,
        prepared: PreparedPrompt,
        sampled: Sampled,
        stops: Sequence[str],
        seconds: float,
    ) -> ChatResponse:
        """Record the continuation, and return the response for the caller."""
        text = self._template.decode(_ids_without_stop(sampled, self._template.stop_ids))
        self.prompts.record(prepared, sampled, self._template.decode(sampled.token_ids))
        parsed = ParsedTurn(text)
        self._append_turn(prepared.branch, prepared.prompt, sampled, text, parsed, seconds, [], wanted.constraint)
        content, stop = _truncate_at_stop(text, stops)
        logprobs = self._logprobs(wanted, sampled, content if stop is not None else None)
        finish = _finish_reason(sampled, stop)
        return ChatResponse(content, (), finish, len(prepared.prompt), len(sampled.token_ids), stop, logprobs)

    def _logprobs(
        self, wanted: SamplingOverrides, sampled: Sampled, before_stop: str | None
    ) -> tuple[TokenLogprob, ...]:
        """Return the logprobs that a call wants. `before_stop`: text before the stop string; None without a stop string."""
        if wanted.top_logprobs is None:
            return ()
        found = token_logprobs(self._template, sampled)
        return tuple(found if before_stop is None else up_to_length(found, len(before_stop.encode("utf-8", "replace"))))

    def _append_turn(
        self,
        branch: ChatBranch | PromptBranch,
        prompt: Sequence[int],
        sampled: Sampled,
        text: str,
        parsed: ParsedTurn,
        seconds: float,
        results: Sequence[str],
        constraint: Constraint | None,
    ) -> None:
        """Append a turn. `results`: the tool results for the branch's previous turn."""
        if results and branch.turns:
            branch.turns[-1] = evolve(branch.turns[-1], tool_results=list(results))
        turn = Turn(
            segment=branch.segment_count - 1,
            prompt_length=len(prompt),
            response_length=len(sampled.token_ids),
            text=text,
            finish_reason=sampled.finish_reason,
            tool_calls=[{"name": c.name, "arguments": c.arguments} for c in parsed.calls],
            timings={"model": round(seconds, 6), "tools": 0.0},
            constraint=constraint.name if constraint is not None else self._constraint,
        )
        branch.turns.append(turn)
        self._turns.append((branch, turn))
        self.tokens = sum(branch.token_count for branch in self._branches())

    def _branches(self) -> list[ChatBranch | PromptBranch]:
        return [*self.chats.branches, *self.prompts.branches]


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
