"""The form of a call with messages, shared by the APIs that have such calls: messages as the chat template needs them,
tools, sampling."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.gateway.requests.call_errors import bad_request
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.tokens.chat_template import Message

MAX_OBJECTS = 20_000
"""Greatest length of a list in a call, such as its messages. Rendering half a million messages takes a minute, whatever
their content."""
MESSAGE_CHARACTERS = 40
"""Approximate number of characters that a template adds to each message."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True)
class ChatToolCall:
    """A tool call as the client sees it."""

    id: str
    name: str
    arguments: str
    """The arguments as JSON text."""


@dataclass(frozen=True)
class ForcedCalls:
    tools: list[dict[str, Any]]
    """The tools of which the policy chooses."""
    named: bool
    """True: the caller named the tool, and wants one call of it."""


@dataclass(frozen=True)
class ChatRequest:
    messages: list[Message]
    """Each message has `role`, and `content` as text. An assistant's message may have `tool_calls`. Their arguments are
    parsed JSON; text that is not JSON stays text. A tool's message has `tool_call_id`."""
    tools: list[dict[str, Any]]
    """Tools in the form of OpenAI's chat API; empty if the caller wants no calls."""
    overrides: SamplingOverrides
    continued_text: str = ""
    """Text that the caller gave as the beginning of the next turn; empty if there is none. The policy goes on
    from there."""
    forced: ForcedCalls | None = None
    """The calls of which the turn must consist; None if the policy chooses."""
    response_id: str = ""
    """Id by which later calls of the session may refer to the turn; empty if they may not."""
    own_messages: int = 0
    """Number of messages at the beginning that such a later call does not continue."""
    results_follow_calls: bool = True
    """Whether the call's API refuses tool results that come after a later message of another role."""

    @property
    def characters(self) -> int:
        """Approximate number of characters of the prompt."""
        characters = sum(
            len(m["content"]) + len(str(m.get("tool_calls", ""))) + MESSAGE_CHARACTERS for m in self.messages
        )
        return characters + (len(str(self.tools)) if self.tools else 0)


@dataclass(frozen=True)
class TokenLogprob:
    """A sampled token with its logprob."""

    data: bytes | None
    """The token's bytes, which may be a part of a character; None if they are not known."""
    logprob: float
    likeliest: tuple[tuple[bytes | None, float], ...] = ()
    """(bytes, logprob) of the likeliest tokens at this position, the likeliest first."""


@dataclass(frozen=True)
class ChatResponse:
    """One answer to a call."""

    content: str
    calls: tuple[ChatToolCall, ...]
    finish: str
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int
    completion_tokens: int
    stop: str | None = None
    """Stop string that ended the turn, or None."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Sampled tokens of the answer; empty if the call does not want logprobs."""
    turn: int = 0
    """Index of the turn in its session."""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer that is streamed."""

    index: int
    """Index of the answer, if the call wants several."""
    text: str
    logprobs: Sequence[TokenLogprob] = ()


SendPiece = Callable[[Piece], Awaitable[None]]
"""Function that receives each piece of an answer when it arrives."""


def text_of(content: Any, where: str) -> str:
    """Join the parts of a message's content to one text. Raises GatewayError for content of another form, for example
    with an image."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where} must be text or a list of text parts", param=where)
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise bad_request(f"{where} has a part of type {kind!r}; this gateway accepts text only", param=where)


def text_field(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{where} must be text", param=where)
    return value


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    """Return a list of objects; null gives an empty list."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise bad_request(f"`{where}` must be a list of objects", param=where)
    if len(value) > MAX_OBJECTS:
        raise bad_request(f"`{where}` may have at most {MAX_OBJECTS} objects; it has {len(value)}", param=where)
    return value


def function_schema(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Build a tool in the form of OpenAI's chat API."""
    function: dict[str, Any] = {"name": text_field(name, "the name of a tool")}
    if description is not None:
        function["description"] = description
    return {
        "type": "function",
        "function": {**function, "parameters": parameters or {"type": "object", "properties": {}}},
    }


def offered_tools(choice: Any, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that a call's `tool_choice` allows. `choice`: a word, or an object with the word as its `type`."""
    return [] if _word(choice) == "none" else tools


def forced_calls(choice: Any, tools: list[dict[str, Any]]) -> ForcedCalls | None:
    """Return the calls that a call's `tool_choice` forces; None if it forces none. Raises GatewayError."""
    word = _word(choice)
    if word in (None, "auto", "none"):
        return None
    if word in ("required", "any"):
        found = tools
    elif word in ("function", "tool"):
        named = choice.get("function") if isinstance(choice.get("function"), dict) else choice
        found = [tool for tool in tools if tool["function"]["name"] == named.get("name")]
    else:
        raise bad_request(
            f"`tool_choice` {str(word)[:64]!r} is not supported; use auto, none, required (any), or a named tool",
            param="tool_choice",
        )
    if not found:
        raise bad_request("`tool_choice` forces a call of a tool that is not in `tools`", param="tool_choice")
    return ForcedCalls(found, named=word in ("function", "tool"))


def _word(choice: Any) -> Any:
    return choice.get("type") if isinstance(choice, dict) else choice


def assistant_message(content: str, calls: Sequence[tuple[str, str, Any]]) -> Message:
    """Build an assistant's message. Each call is (id, name, arguments as text or object)."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _arguments_as_object(arguments)}}
            for id, name, arguments in calls
        ]
    return message


def _arguments_as_object(arguments: Any) -> Any:
    """Parse arguments, because templates need an object. Text that is not JSON stays unchanged."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
