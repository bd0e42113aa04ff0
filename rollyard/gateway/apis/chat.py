"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from rollyard.gateway.apis.base import Body, flag, model_of, new_id, openai_error, sse_data, unix_now, wants_usage
from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import (
    ROLES,
    ChatRequest,
    ChatResponse,
    assistant_message,
    objects,
    offered_tools,
    text_field,
    text_of,
)
from rollyard.gateway.requests.ignored_fields import TOOL
from rollyard.gateway.requests.sampling_overrides import check_fields, read_overrides
from rollyard.gateway.session.session import GatewaySession, SendText
from rollyard.tokens.chat_template import Message

CONTINUE, OPEN_TURN = "continue_final_message", "add_generation_prompt"
"""vLLM's fields for a turn that the caller begins."""
OWN_FIELDS = ("model", "messages", "tools", "tool_choice", "stream", "stream_options", CONTINUE, OPEN_TURN)


class ChatExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._usage = wants_usage(body)
        self._model = model_of(body)
        messages = [_message(m) for m in objects(body.get("messages"), "messages")]
        continued_text = _continued_text(body, messages)
        if not messages:
            raise bad_request("`messages` must have at least one message", param="messages")
        tools = offered_tools(body.get("tool_choice"), _tools(body))
        self._request = ChatRequest(messages, tools, read_overrides(body, OWN_FIELDS), continued_text)
        self._id, self._created, self._opened = new_id("chatcmpl-"), unix_now(), False

    async def run(self, session: GatewaySession, on_text: SendText | None) -> ChatResponse:
        return await session.chat(self._request, on_text)

    def response_body(self, response: ChatResponse) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": response.content or None, "refusal": None}
        if response.calls:
            message["tool_calls"] = _calls(response)
        elif not response.content:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": response.finish}
        return {**self._envelope("chat.completion"), "choices": [choice], "usage": usage_json(response)}

    def text_events(self, piece: str) -> bytes:
        return self._open() + self._chunk({"content": piece})

    def end_events(self, response: ChatResponse) -> bytes:
        events = [self._open()]
        for i, call in enumerate(_calls(response)):
            named = {**call["function"], "arguments": ""}
            events.append(self._chunk({"tool_calls": [{"index": i, **call, "function": named}]}))
            rest = {"index": i, "function": {"arguments": call["function"]["arguments"]}}
            events.append(self._chunk({"tool_calls": [rest]}))
        events.append(self._chunk({}, response.finish))
        if self._usage:
            events.append(
                sse_data({**self._envelope("chat.completion.chunk"), "choices": [], "usage": usage_json(response)})
            )
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error_events(self, refusal: GatewayError) -> bytes:
        return sse_data(openai_error(refusal))

    @staticmethod
    def error_body(refusal: GatewayError) -> dict[str, Any]:
        return openai_error(refusal)

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": ""})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        body = {**self._envelope("chat.completion.chunk"), "choices": [choice]}
        return sse_data({**body, "usage": None} if self._usage else body)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def usage_json(response: ChatResponse) -> dict[str, Any]:
    return {
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "total_tokens": response.prompt_tokens + response.completion_tokens,
    }


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
