"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollyard.gateway.apis.base import Body, flag, model_of, new_id, openai_error, sse_data, unix_now, wants_usage
from rollyard.gateway.apis.logprobs_json import token_entries
from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import (
    ROLES,
    ChatRequest,
    ChatResponse,
    Piece,
    SendPiece,
    TokenLogprob,
    assistant_message,
    forced_calls,
    objects,
    offered_tools,
    text_field,
    text_of,
)
from rollyard.gateway.requests.ignored_fields import TOOL
from rollyard.gateway.requests.sampling_overrides import check_fields, read_choices, read_overrides, read_top_logprobs
from rollyard.gateway.requests.tool_results import with_call_ids
from rollyard.gateway.session.session import GatewaySession
from rollyard.tokens.chat_template import Message

CONTINUE, OPEN_TURN = "continue_final_message", "add_generation_prompt"
"""vLLM's fields for a turn that the caller begins."""
OWN_FIELDS = (
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "n", "logprobs", "top_logprobs",
    CONTINUE, OPEN_TURN,
)  # fmt: skip


class ChatExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._usage = wants_usage(body)
        self._model = model_of(body)
        messages = with_call_ids([_message(m) for m in objects(body.get("messages"), "messages")])
        continued_text = _continued_text(body, messages)
        if not messages:
            raise bad_request("`messages` must have at least one message", param="messages")
        choice, tools = body.get("tool_choice"), _tools(body)
        wanted = replace(read_overrides(body, OWN_FIELDS), choices=read_choices(body), top_logprobs=_top_logprobs(body))
        offered, forced = offered_tools(choice, tools), forced_calls(choice, tools)
        self._request = ChatRequest(messages, offered, wanted, continued_text, forced)
        self._id, self._created = new_id("chatcmpl-"), unix_now()
        self._sent: dict[int, int] = {}
        """Index of each answer whose stream has begun -> number of logprobs sent."""

    async def run(self, session: GatewaySession, on_piece: SendPiece | None) -> Sequence[ChatResponse]:
        async with session.room_for_logprobs(self._request.overrides):
            return await session.chat(self._request, on_piece)

    def response_body(self, responses: Sequence[ChatResponse]) -> dict[str, Any]:
        choices = [self._choice(i, response) for i, response in enumerate(responses)]
        return {**self._envelope("chat.completion"), "choices": choices, "usage": usage_json(responses)}

    def _choice(self, index: int, response: ChatResponse) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": response.content or None, "refusal": None}
        if response.calls:
            message["tool_calls"] = _calls(response)
        elif not response.content:
            message["content"] = ""
        logprobs = self._logprobs(response.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": response.finish}

    def text_events(self, piece: Piece) -> bytes:
        begun = self._open(piece.index)
        self._sent[piece.index] += len(piece.logprobs)
        return begun + self._chunk(piece.index, {"content": piece.text}, self._logprobs(piece.logprobs))

    def end_events(self, responses: Sequence[ChatResponse]) -> bytes:
        events = [self._end(i, response) for i, response in enumerate(responses)]
        if self._usage:
            events.append(
                sse_data({**self._envelope("chat.completion.chunk"), "choices": [], "usage": usage_json(responses)})
            )
        return b"".join([*events, b"data: [DONE]\n\n"])

    def _end(self, index: int, response: ChatResponse) -> bytes:
        """Return the events for everything after the text of one answer."""
        events = [self._open(index)]
        for i, call in enumerate(_calls(response)):
            named = {**call["function"], "arguments": ""}
            events.append(self._chunk(index, {"tool_calls": [{"index": i, **call, "function": named}]}))
            rest = {"index": i, "function": {"arguments": call["function"]["arguments"]}}
            events.append(self._chunk(index, {"tool_calls": [rest]}))
        left = response.logprobs[self._sent[index] :]
        return b"".join([*events, self._chunk(index, {}, self._logprobs(left), response.finish)])

    def error_events(self, refusal: GatewayError) -> bytes:
        return sse_data(openai_error(refusal))

    def _open(self, index: int) -> bytes:
        if index in self._sent:
            return b""
        self._sent[index] = 0
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._request.overrides.top_logprobs is None:
            return None
        return {"content": token_entries(logprobs), "refusal": None}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        body = {**self._envelope("chat.completion.chunk"), "choices": [choice]}
        return sse_data({**body, "usage": None} if self._usage else body)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def usage_json(responses: Sequence[ChatResponse]) -> dict[str, Any]:
    """Return the usage of a call. All its answers have the same prompt, which counts once."""
    prompt, sampled = responses[0].prompt_tokens, sum(response.completion_tokens for response in responses)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _top_logprobs(body: Body) -> int | None:
    count = read_top_logprobs(body, "top_logprobs")
    if flag(body, "logprobs"):
        return count
    if count:
        raise bad_request("`top_logprobs` needs `logprobs` true", param="top_logprobs")
    return None


def _calls(response: ChatResponse) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in response.calls
    ]


def _tools(body: Body) -> list[dict[str, Any]]:
    tools = objects(body.get("tools"), "tools")
    for tool in tools:
        known = tool.get("type", "function") == "function" and isinstance(tool.get("function"), dict)
        if not known or not isinstance(tool["function"].get("name"), str):
            raise bad_request("each of `tools` must be a function with a name", param="tools")
        check_fields(tool, ("type", "function"), TOOL, "tools[]")
        check_fields(tool["function"], ("name", "description", "parameters"), TOOL, "tools[].function")
    return tools


def _continued_text(body: Body, messages: list[Message]) -> str:
    """Remove the last message if the next turn continues it, and return its text; empty if the turn is a new one."""
    if not flag(body, CONTINUE):
        if body.get(OPEN_TURN) is not None and not flag(body, OPEN_TURN):
            raise bad_request(f"`{OPEN_TURN}` can be false only with `{CONTINUE}` true", param=OPEN_TURN)
        return ""
    if flag(body, OPEN_TURN):
        raise bad_request(f"with `{CONTINUE}`, set `{OPEN_TURN}` to false or leave it out", param=OPEN_TURN)
    last = messages.pop() if messages else {}
    if last.get("role") != "assistant" or not last["content"] or "tool_calls" in last:
        raise bad_request(
            f"with `{CONTINUE}` the last message must be the assistant's, with text and without tool calls",
            param="messages",
        )
    return str(last["content"])


def _message(message: dict[str, Any]) -> Message:
    """Normalise a message for the template, so that fields which harnesses add or leave out make no difference."""
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise bad_request(f"`role` must be one of {', '.join(ROLES)}, not {message.get('role')!r}", param="messages")
    content = text_of(message.get("content"), "content")
    if role == "assistant":
        calls = [_call(call) for call in objects(message.get("tool_calls"), "tool_calls")]
        return assistant_message(content, calls)
    if role == "tool":
        id = text_field(message.get("tool_call_id") or "", "tool_call_id")
        return {"role": "tool", "content": content, "tool_call_id": id}
    named = {"name": text_field(message["name"], "name")} if message.get("name") else {}
    return {"role": role, "content": content, **named}


def _call(call: dict[str, Any]) -> tuple[str, str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("each of `tool_calls` must have a function with a name", param="messages")
    return str(call.get("id") or ""), function["name"], function.get("arguments")
