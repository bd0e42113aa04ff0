"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rollyard.gateway.apis.base import Body, flag, model_of, new_id, sse_event
from rollyard.gateway.requests.call_errors import GatewayError, bad_request, no_threads
from rollyard.gateway.requests.chat_request import (
    ChatRequest,
    ChatResponse,
    Piece,
    SendPiece,
    assistant_message,
    forced_calls,
    function_schema,
    objects,
    offered_tools,
    text_field,
    text_of,
)
from rollyard.gateway.requests.ignored_fields import TOOL, WHOLE
from rollyard.gateway.requests.sampling_overrides import check_fields, read_overrides
from rollyard.gateway.session.session import GatewaySession
from rollyard.tokens.chat_template import Message

OWN_FIELDS = ("model", "messages", "system", "tools", "tool_choice", "stream")
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
THOUGHTS = ("thinking", "redacted_thinking")
BILLING = "x-anthropic-billing-header:"
"""Beginning of the line that Claude Code puts before its system prompt. It holds a hash of the request, so it would make
each call a conversation of its own."""


class MessagesExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._model = model_of(body)
        self.request = read(body)
        self._id, self._blocks, self._open = new_id("msg_"), 0, False
        self._message_started = False

    async def run(self, session: GatewaySession, on_piece: SendPiece | None) -> Sequence[ChatResponse]:
        return await session.chat(self.request, on_piece)

    def response_body(self, responses: Sequence[ChatResponse]) -> dict[str, Any]:
        (response,) = responses
        content: list[dict[str, Any]] = [{"type": "text", "text": response.content}] if response.content else []
        content += [{**_tool_use(c.id, c.name), "input": json.loads(c.arguments)} for c in response.calls]
        usage = {"input_tokens": response.prompt_tokens, "output_tokens": response.completion_tokens}
        return {**self._message(content, usage), **_stop(response)}

    def text_events(self, piece: Piece) -> bytes:
        events = [self._begin()]
        if not self._open:
            events.append(self._start({"type": "text", "text": ""}))
        return b"".join([*events, self._delta({"type": "text_delta", "text": piece.text})])

    def end_events(self, responses: Sequence[ChatResponse]) -> bytes:
        (response,) = responses
        events = [self._begin(), self._stop_block()]
        for call in response.calls:
            events.append(self._start({**_tool_use(call.id, call.name), "input": {}}))
            events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
            events.append(self._stop_block())
        usage = {"input_tokens": response.prompt_tokens, "output_tokens": response.completion_tokens}
        events.append(sse_event({"type": "message_delta", "delta": _stop(response), "usage": usage}))
        return b"".join([*events, sse_event({"type": "message_stop"})])

    def error_events(self, refusal: GatewayError) -> bytes:
        return sse_event(anthropic_error(refusal))

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        message = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}

    def _begin(self) -> bytes:
        if self._message_started:
            return b""
        self._message_started = True
        message = self._message([], {"input_tokens": 0, "output_tokens": 0})
        return sse_event({"type": "message_start", "message": message})

    def _start(self, block: dict[str, Any]) -> bytes:
        self._open = True
        return sse_event({"type": "content_block_start", "index": self._blocks, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return sse_event({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _stop_block(self) -> bytes:
        if not self._open:
            return b""
        self._open, self._blocks = False, self._blocks + 1
        return sse_event({"type": "content_block_stop", "index": self._blocks - 1})


def anthropic_error(refusal: GatewayError) -> dict[str, Any]:
    kind = ERROR_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    message = str(refusal)
    if refusal.too_long is not None:
        tokens, context = refusal.too_long
        message = f"prompt is too long: {tokens} tokens > {context - 1} maximum, for an answer has to fit too"
    details = {"details": dict(refusal.details)} if refusal.details is not None else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def read(body: Body) -> ChatRequest:
    """Parse the body. Raises GatewayError."""
    if body.get("thread") is not None:
        raise no_threads(WHOLE)
    messages: list[Message] = []
    if system := _system(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in objects(body.get("messages"), "messages"):
        messages += _messages(message)
    messages, lead = _merge_assistant_messages(messages)
    if not any(m["role"] != "system" for m in messages):
        raise bad_request("`messages` must have at least one message", param="messages")
    tools = [_tool(tool) for tool in objects(body.get("tools"), "tools")]
    choice = body.get("tool_choice")
    wanted = read_overrides(body, OWN_FIELDS)
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        wanted = replace(wanted, parallel_tool_calls=False)
    return ChatRequest(messages, offered_tools(choice, tools), wanted, lead, forced_calls(choice, tools))


def _system(given: Any) -> str:
    """Return the system prompt without the line about billing, which is not part of it."""
    parts = given if isinstance(given, list) else [text_of(given, "system")]
    texts = [text_of([part], "system") for part in parts]
    return "".join(text.partition("\n")[2] if text.startswith(BILLING) else text for text in texts)


def _merge_assistant_messages(messages: list[Message]) -> tuple[list[Message], str]:
    """Merge consecutive assistant messages, as Anthropic does. If the last message is the assistant's, return its text
    apart from the messages: the next turn begins with this text."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last["role"] == message["role"] == "assistant":
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            joined[-1] = {**last, "content": last["content"] + message["content"]}
            joined[-1] |= {"tool_calls": calls} if calls else {}
        else:
            joined.append(message)
    if not joined or joined[-1]["role"] != "assistant":
        return joined, ""
    last = joined.pop()
    if "tool_calls" in last:
        raise bad_request("the last message has a tool_use that no tool_result follows", param="messages")
    if not last["content"]:
        raise bad_request("the last message is the assistant's and has no text to continue", param="messages")
    return joined, last["content"]


def _messages(message: dict[str, Any]) -> Iterator[Message]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise bad_request(f"`role` must be user or assistant, not {role!r}", param="messages")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content, "content")
    if role == "assistant":
        text = [b for b in blocks if b.get("type") not in ("tool_use", *THOUGHTS)]
        named = [_called(b) for b in blocks if b.get("type") == "tool_use"]
        yield assistant_message(text_of(text, "content"), named)
        return
    rest: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if rest:
                raise bad_request(
                    "a tool_result comes after another block of its message: send the results first, then the text",
                    param="messages",
                )
            result = text_of(block.get("content"), "tool_result")
            id = text_field(block.get("tool_use_id"), "the tool_use_id of a tool_result")
            yield {"role": "tool", "content": result, "tool_call_id": id}
        else:
            rest.append(block)
    if rest or not blocks:  # without its empty message, a conversation would end with the message before it
        yield {"role": role, "content": text_of(rest, "content")}


def _called(block: dict[str, Any]) -> tuple[str, str, Any]:
    """Return (id, name, input) of a call."""
    id, name = (text_field(block.get(key), f"the {key} of a tool_use") for key in ("id", "name"))
    return id, name, block.get("input")


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise bad_request(
            f"a tool of type {tool['type']!r} runs at its provider, which this gateway is not; offer a tool of your own",
            param="tools",
        )
    check_fields(tool, ("type", "name", "description", "input_schema"), TOOL, "tools[]")
    return function_schema(tool.get("name"), tool.get("description"), tool.get("input_schema"))


def _tool_use(id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name}


def _stop(response: ChatResponse) -> dict[str, Any]:
    if response.stop is not None and not response.calls:
        return {"stop_reason": "stop_sequence", "stop_sequence": response.stop}
    return {"stop_reason": STOP_REASONS[response.finish], "stop_sequence": None}
