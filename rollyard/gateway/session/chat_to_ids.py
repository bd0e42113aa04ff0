"""Conversion of chat calls to prompts of token ids. The session's history is a tree of conversations, and each call
extends the longest free branch that is a prefix of the call's history, or opens a new branch.

Each branch has a `Conversation`. Callers send the whole history as text with every call, often with small changes. So
each message has a key, which leaves out the parts whose changes have no meaning. A call continues a branch if the
call's keys equal the branch's keys up to the branch's last sampled turn, and no assistant's message follows in the
call. The ids of the branch's turns then replace the text that the caller sent back.

A history that matches no free branch opens a new branch: the caller has edited or shortened the history, is a
sub-agent, or makes parallel calls.
If the history contains turns that were sampled before, these turns keep their ids, as context. A history without any
sampled turn begins a new conversation.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left as bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.gateway.requests.chat_request import ChatRequest
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.requests.tool_results import check_results_follow_calls
from rollyard.gateway.session.chat_branch import ChatBranch, Key
from rollyard.gateway.session.stored_call import StoredChat
from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.conversation import Break, BreakCause, Conversation
from rollyard.tokens.template_rendering import SampledMessage
from rollyard.tokens.tool_calls import ParsedTurn, ToolCallParser, plain_turn, without_thoughts

ParserFor = Callable[[list[dict[str, Any]]], ToolCallParser | None]
"""Function that makes the parser of a call's turns from its tools; None if nothing in a turn counts as a call."""
BEFORE, QUOTED = 10, 40
"""Number of characters that are quoted before a difference, and from the beginning of the difference on."""
SEAM_CHARS = 64
"""If the caller gives the beginning of a turn (`continued_text`), the beginning is tokenised together with this many
characters before it, because these characters can change its tokens."""


@dataclass(frozen=True)
class Opening:
    """Facts about the other branches, at the time when a branch was opened."""

    recalled: list[int | None]
    """For each message of the first call: index, among the sampled turns of all branches, of the turn whose ids replace
    the message; None if the message was not sampled."""
    why: Break | None


@dataclass(frozen=True)
class PreparedChat:
    """A call whose prompt is ready, with its branch."""

    branch: ChatBranch
    opening: Opening | None
    """None if the call continues the branch."""
    messages: Sequence[Message]
    prompt: list[int]
    keys: list[Key]
    """The key before the first message, then a key for each message."""
    results: list[str]
    """Tool results that the caller sent since the branch's last turn."""
    continued_text: str = ""
    """Text with which the turn begins, if the caller gave one."""
    continued_ids: list[int] = field(default_factory=list)
    """Ids of the turn's beginning, if the caller gave a beginning. These ids are the last ones of `prompt`."""
    response_id: str = ""
    own_messages: int = 0

    @property
    def request_key(self) -> str:
        """Text that is the same for each repetition of the call."""
        return f"{self.keys[-1]} {self.continued_text}"


class ChatHistory:
    """All branches of one session, in the order of their first answers."""

    def __init__(self, template: ChatTemplate, parser_for: ParserFor) -> None:
        self._template = template
        self._parser_for = parser_for
        self.branches: list[ChatBranch] = []
        self._answers: list[SampledMessage] = []
        """Sampled turns of all branches, in the order in which they ended."""
        self._numbers: dict[int, int] = {}
        """`id()` of a sampled turn -> its index in `_answers`."""
        self._by_digest: dict[tuple[Key, str], SampledMessage | None] = {}
        """(key before an assistant's message, the message's digest) -> the sampled turn, or None if the message was not
        sampled."""
        self._latest: dict[str, SampledMessage] = {}
        """Digest of an assistant's message -> the latest sampled turn with this text, on any branch."""
        self._aliases: dict[tuple[Key, str], str] = {}
        """(key before a message, digest of another form that callers may send) -> digest of the form that callers
        received."""
        self._beginnings: set[tuple[Key, str]] = set()
        """(key before an assistant's message, the message's digest) of each text with which a caller began a turn."""

    def prepare(self, request: ChatRequest, context: int | None = None) -> PreparedChat:
        """Find or open the branch. The branch is busy until `record` or `release`.

        Raises GatewayError if a tool result comes too late, TaskError if the template refuses the messages or cannot
        continue the caller's text, TemplateUnusable if the template fails, and ContextExceeded if the text cannot fit
        into `context` tokens.
        """
        request, keys = self._with_keys(request)
        lead = self._continued_ids(request) if request.continued_text else []
        # Only a branch that has the request's last message of role `assistant` can continue. If no branch has it, a new
        # branch is opened, which gets the ids of messages that other branches sampled.
        last = max((i for i, m in enumerate(request.messages, 1) if m["role"] == "assistant"), default=0)
        free = (b for b in self.branches if not b.busy and b.start == keys[0] and b.length >= last)
        going_on = [b for b in free if keys[b.length :][:1] == b.keys[-1:]]
        branch = max(going_on, key=lambda b: b.length, default=None)
        if request.results_follow_calls:  # what the branch has recorded is not refused any more
            check_results_follow_calls(request.messages, branch.length if branch is not None else 0)
        opening = self._opening(request.messages, keys) if branch is None else None
        if branch is not None:
            request = replace(request, messages=branch.with_given_ids(request.messages))
        return self._place(request, keys, lead, branch, opening, context)

    def describe(self, prepared: PreparedChat) -> StoredChat:
        """Describe a call for `restore`. Call this before `record`."""
        branch, opening = prepared.branch, prepared.opening
        given = prepared.continued_text, prepared.continued_ids, prepared.response_id, prepared.own_messages
        if opening is None:
            return StoredChat(
                self.branches.index(branch), list(prepared.messages[branch.length :]), [], [], None, *given
            )
        why = (opening.why.turn, str(opening.why.cause), opening.why.why) if opening.why is not None else None
        return StoredChat(None, list(prepared.messages), branch.tools, opening.recalled, why, *given)

    def restore(self, call: StoredChat) -> PreparedChat:
        """Prepare a call again on the branch that the call had. The calls before it must have been restored and recorded.
        Raises as `prepare` does."""
        branch = self.branches[call.branch] if call.branch is not None else None
        before, opening = (branch.messages, None) if branch is not None else ([], self._restored_opening(call))
        request = ChatRequest(
            [*before, *call.messages],
            call.tools,
            SamplingOverrides(),
            call.continued_text,
            response_id=call.response_id,
            own_messages=call.own_messages,
        )
        keys = self._chain(branch.keys if branch is not None else [_start(call.tools)], call.messages)
        return self._place(request, keys, call.continued_ids, branch, opening)

    def request_key(self, request: ChatRequest) -> str:
        """Return the `PreparedChat.request_key` that the call would have."""
        return f"{self._with_keys(request)[1][-1]} {request.continued_text}"

    def _place(
        self,
        request: ChatRequest,
        keys: list[Key],
        lead: list[int],
        branch: ChatBranch | None,
        opening: Opening | None,
        context: int | None = None,
    ) -> PreparedChat:
        """Prepare a call on its branch, or on a new one."""
        if branch is None:
            assert opening is not None
            branch = self._open(request, keys, opening)
        else:
            branch.busy = True
            branch.replace_unanswered(request.messages[branch.length :])
        try:
            prompt = branch.conversation.prompt_ids(context)
        except BaseException:
            branch.replace_unanswered([])
            branch.busy = False
            raise
        results = [str(m["content"]) for m in request.messages[branch.length :] if m["role"] == "tool"]
        text = request.continued_text
        link = request.response_id, request.own_messages
        return PreparedChat(branch, opening, request.messages, [*prompt, *lead], keys, results, text, lead, *link)

    def record(self, prepared: PreparedChat, parsed: ParsedTurn, message: Message, ended_by: str = "") -> None:
        """Record the last turn of the branch's conversation. `message`: the turn as the caller sees it.

        `ended_by`: the stop string that ended the turn. Callers may send it back at the end of the turn.
        """
        branch, before = prepared.branch, prepared.keys[-1]
        answer = branch.conversation.last
        if branch.tools:
            answer.parsed = parsed
        branch.learn_call_ids(message)
        self._numbers[id(answer)] = len(self._answers)
        self._answers.append(answer)
        own = _message_digest(message)
        self._by_digest[before, own] = self._latest[own] = answer
        if ended_by:
            other = _message_digest({**message, "content": f"{message['content']}{ended_by}"})
            self._aliases[before, other], self._latest[other] = own, answer
        if prepared.continued_text:
            self._beginnings.add((before, _message_digest({"role": "assistant", "content": prepared.continued_text})))
        branch.keys += [*prepared.keys[len(branch.keys) :], _digest(before, own)]
        branch.messages += [*prepared.messages[branch.length :], message]
        if branch not in self.branches:
            self.branches.append(branch)
        branch.busy = False

    def siblings(self, prepared: PreparedChat, count: int) -> list[PreparedChat]:
        """Return further calls with the same prompt, each on a branch of its own, which exists from `record` on."""
        return [replace(prepared, branch=prepared.branch.sibling(), results=[]) for _ in range(count)]

    def release(self, prepared: PreparedChat) -> None:
        """Release the branch of a call that recorded no turn, and discard the call's messages."""
        prepared.branch.replace_unanswered([])
        prepared.branch.busy = False

    def _continued_ids(self, request: ChatRequest) -> list[int]:
        """Return the ids of the text with which the caller wants the next turn to begin.

        Raises TaskError if the template changes this text when it renders an assistant's message, or if the text has no
        exact ids after the prompt.
        """
        render, encode = self._template.render, self._template.encode
        open_turn = render(request.messages, request.tools, True)
        shown = render(
            [*request.messages, {"role": "assistant", "content": request.continued_text}], request.tools, False
        )
        seam = open_turn[-SEAM_CHARS:]
        before, ids = encode(seam), encode(seam + request.continued_text)
        lead = ids[len(before) :]
        exact = shown.startswith(open_turn + request.continued_text) and ids[: len(before)] == before
        if not exact or self._template.decode(lead) != request.continued_text:
            raise TaskError(
                "the last message is the assistant's, but this model's chat template changes it, so no turn can continue it: "
                "end with a message of the user, or change the assistant's text (no white space at its end)"
            )
        return lead

    def _opening(self, messages: Sequence[Message], keys: Sequence[Key]) -> Opening:
        recalled: list[SampledMessage | None] = []
        for message, before in zip(messages, keys, strict=False):
            found = self._sampled(message, before, any(recalled)) if message["role"] == "assistant" else None
            recalled.append(found)
        numbers = [self._numbers[id(answer)] if answer is not None else None for answer in recalled]
        return Opening(numbers, self._why_no_branch(messages, keys, any(recalled)))

    def _restored_opening(self, call: StoredChat) -> Opening:
        keys = self._chain([_start(call.tools)], call.messages)
        for message, before, number in zip(call.messages, keys, call.recalled, strict=False):
            if message["role"] == "assistant":
                answer = self._answers[number] if number is not None else None
                self._by_digest[before, self._own_turn(message, before)] = answer  # as `_sampled` left it
        why = Break(call.why[0], BreakCause(call.why[1]), call.why[2]) if call.why is not None else None
        return Opening(call.recalled, why)

    def _open(self, request: ChatRequest, keys: Sequence[Key], opening: Opening) -> ChatBranch:
        recalled = [self._answers[number] if number is not None else None for number in opening.recalled]
        parser = self._parser_for(request.tools)
        conversation = Conversation(self._template, [], request.tools, opening.why, parser)
        branch = ChatBranch(conversation, keys[0], request.tools)
        for message, answer in zip(request.messages, recalled, strict=True):
            if answer is not None:
                branch.recall(answer, message)
            else:
                branch.add([message])
        # the messages of the first call; `record` adds the answer later, and then appends the branch to `branches`
        branch.keys, branch.messages = list(keys), list(request.messages)
        branch.first = next((i for i, answer in enumerate(recalled) if answer is not None), len(recalled))
        return branch

    def _why_no_branch(self, messages: Sequence[Message], keys: Sequence[Key], recalled: bool) -> Break | None:
        """Return why no branch matches a history. None for a new conversation: the history has no sampled turn, and
        does not continue the first messages of a branch."""
        near = max(self.branches, key=lambda b: b.common_prefix(keys), default=None)
        if near is None or not (recalled or near.first <= near.common_prefix(keys) < len(messages)):
            return None
        number = sum(len(b.turns) for b in self.branches)
        return Break(
            number,
            BreakCause.HISTORY_CHANGED,
            f"turn {number}: {_difference(near, messages, near.common_prefix(keys))}",
        )

    def _chain(self, keys: Sequence[Key], messages: Sequence[Message]) -> list[Key]:
        """Continue the keys with a key for each message."""
        chain = list(keys)
        for message in messages:
            chain.append(_digest(chain[-1], self._own_turn(message, chain[-1])))
        return chain

    def _with_keys(self, request: ChatRequest) -> tuple[ChatRequest, list[Key]]:
        """Return the request and its keys. If the caller sent the beginning and the rest of a turn as two messages, they
        become one message."""
        messages: list[Message] = []
        keys = [_start(request.tools)]
        for message in request.messages:
            last = messages[-1] if messages else None
            if last is not None and last["role"] == message["role"] == "assistant" and self._is_beginning(last, keys):
                message = {**message, "content": last["content"] + message["content"]}
                del messages[-1], keys[-1]
            messages.append(message)
            keys.append(_digest(keys[-1], self._own_turn(message, keys[-1])))
        return replace(request, messages=messages), keys

    def _is_beginning(self, last: Message, keys: Sequence[Key]) -> bool:
        return "tool_calls" not in last and (keys[-2], _message_digest(last)) in self._beginnings

    def _own_turn(self, message: Message, before: Key) -> str:
        own = _message_digest(message)
        return self._aliases.get((before, own), own)

    def _sampled(self, message: Message, before: Key, recalled: bool) -> SampledMessage | None:
        """Find the sampled turn of a message. If no turn was sampled after exactly this history, search for a turn with
        the same text.

        The short answer of an unrelated turn may have the same text by chance. So a turn that was found by its text is
        used only if the message shows the turn's thoughts, if the turn has no thoughts, or if `recalled`: the turn of
        an earlier message of this history was found.
        """
        own = self._own_turn(message, before)
        if (before, own) not in self._by_digest:
            latest = self._latest.get(own)
            same = recalled or (latest is not None and _shows_thoughts(message, latest))
            self._by_digest[before, own] = latest if same else None
        return self._by_digest[before, own]


def _difference(near: ChatBranch, messages: Sequence[Message], common: int) -> str:
    """Describe the first difference between a history and `near`, the branch with the longest common beginning."""
    if common < 0:
        return "the offered tools differ"
    if common >= len(messages):
        return f"the history ends with message {common}, but continued before"
    if common >= near.length:
        what = "another call continues from there" if near.busy else "a turn of another branch follows"
        return f"after message {common}, {what}"
    then, now = near.messages[common], messages[common]
    old, new = _quote_difference(then, now), _quote_difference(now, then)
    return f"message {common + 1} ({now['role']}) has {new!r}, but had {old!r} ({then['role']})"


def _quote_difference(message: Message, other: Message) -> str:
    """Quote the part of a message around the first character that differs from the other message."""
    text, others = (f"{m['content']}{m.get('tool_calls', '')}" for m in (message, other))
    same = common_length(text, others)
    return text[max(same - BEFORE, 0) : same + QUOTED]


def common_length(text: str, other: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    return bisect(range(1, min(len(text), len(other)) + 1), True, key=lambda n: text[:n] != other[:n])


def _shows_thoughts(message: Message, answer: SampledMessage) -> bool:
    """Return whether the message shows the turn's thoughts, or the turn has none. False for thoughts in the Harmony
    format, which callers never see."""
    shown = plain_turn(str(message["content"])).thoughts
    return (shown or "").strip() == (answer.parsed.thoughts or "").strip()


def _start(tools: Sequence[dict[str, Any]]) -> Key:
    return _digest("tools", json.dumps(tools, sort_keys=True))


def _message_digest(message: Message) -> str:
    """Return the digest of a message without the parts whose changes have no meaning.

    These parts are space around the text, thoughts, the formatting of arguments, and ids of calls.
    """
    content = str(message["content"])
    if message["role"] == "assistant":
        content = without_thoughts(content)
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", ())]
    who = f"{message['role']}\0{message['name']}" if "name" in message else message["role"]
    return _digest(who, json.dumps(calls, sort_keys=True) if calls else "", content.strip())


def _digest(*parts: str) -> Key:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
