"""OpenAI's `/v1/responses`. `input` is the whole conversation, or continues an earlier response of the session
(`previous_response_id`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rollyard.gateway.apis.base import (
    Body,
    answer_characters,
    flag,
    json_bytes,
    model_of,
    new_id,
    sse_event,
    stream_options,
    unix_now,
)
from rollyard.gateway.apis.logprobs_json import token_entries
from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import (
    ROLES,
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
from rollyard.gateway.requests.ignored_fields import TOOL
from rollyard.gateway.requests.sampling_overrides import check_fields, read_overrides, read_top_logprobs
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.stored_responses import pack
from rollyard.tokens.chat_template import Message

OWN_FIELDS = (
    "model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "top_logprobs", "store",
    "previous_response_id",
)  # fmt: skip
ECHOED = ("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "metadata", "user")
LOGPROBS = "message.output_text.logprobs"
"""Item of `include` that requests logprobs."""


class ResponsesExchange:
    def __init__(self, body: Body) -> None:
        self.stream = flag(body, "stream")
        self._body = dict(body)
        self._model = model_of(body)
        self._id, self._message_id, self._created = new_id("resp_"), new_id("msg_"), unix_now()
        self._store = body.get("store") is None or flag(body, "store")
        self._previous = body.get("previous_response_id")
        if not isinstance(self._previous, str | None):
            raise bad_request("`previous_response_id` must be the id of a response", param="previous_response_id")
        self._request = replace(read(body), response_id=self._id if self._store else "")
        self._number = 0
        self._text: list[str] = []
        self._response_started = False

    async def run(self, session: GatewaySession, on_piece: SendPiece | None) -> Sequence[ChatResponse]:
        request = self._request
        if self._previous is not None:
            earlier, own = session.responses.messages(self._previous), request.own_messages
            request = replace(request, messages=[*request.messages[:own], *earlier, *request.messages[own:]])
        async with session.room_for_logprobs(request.overrides):
            responses = await session.chat(request, on_piece)
        if self._store:
            size = answer_characters(responses) + request.characters
            try:
                packed = await session.run_for_body(partial(self._packed, responses), size)
            except BaseException:  # the caller has left meanwhile
                session.not_delivered(responses)
                raise
            session.responses.keep_body(self._id, packed)
        return responses

    def _packed(self, responses: Sequence[ChatResponse]) -> bytes:
        return pack(json_bytes(self.response_body(responses)))

    def response_body(self, responses: Sequence[ChatResponse]) -> dict[str, Any]:
        (response,) = responses
        entries = token_entries(response.logprobs)
        output = [self._message(response.content, "completed", entries)] if response.content else []
        output += [_function_call(c.id, c.name, c.arguments, "completed") for c in response.calls]
        usage = {
            "input_tokens": response.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": response.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": response.prompt_tokens + response.completion_tokens,
        }
        if response.finish != "length":
            return self._response("completed", output, usage)
        cut = {"incomplete_details": {"reason": "max_output_tokens"}}
        return {**self._response("incomplete", output, usage), **cut}

    def text_events(self, piece: Piece) -> bytes:
        events = [self._begin()]
        if not self._text:
            events.append(self._event("output_item.added", output_index=0, item=self._message(None, "in_progress")))
            events.append(self._event("content_part.added", **self._text_position(), part=_part("")))
        self._text.append(piece.text)
        delta = {"delta": piece.text, "logprobs": token_entries(piece.logprobs)}
        return b"".join([*events, self._event("output_text.delta", **self._text_position(), **delta)])

    def end_events(self, responses: Sequence[ChatResponse]) -> bytes:
        events = [self._begin()]
        whole = self.response_body(responses)
        if self._text:
            text, entries = "".join(self._text), token_entries(responses[0].logprobs)
            events.append(self._event("output_text.done", **self._text_position(), text=text, logprobs=entries))
            events.append(self._event("content_part.done", **self._text_position(), part=_part(text, entries)))
            item = self._message(text, "completed", entries)
            events.append(self._event("output_item.done", output_index=0, item=item))
        for i, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                events.append(self._call(i, item))
        events.append(self._event(whole["status"], response=whole))
        return b"".join(events)

    def error_events(self, refusal: GatewayError) -> bytes:
        failed = {
            **self._response("failed", [], None),
            "error": {"code": refusal.code or "server_error", "message": str(refusal)},
        }
        return self._event("failed", response=failed)

    def _begin(self) -> bytes:
        if self._response_started:
            return b""
        self._response_started = True
        response = self._response("in_progress", [], None)
        return self._event("created", response=response) + self._event("in_progress", response=response)

    def _call(self, index: int, item: dict[str, Any]) -> bytes:
        place = {"output_index": index, "item_id": item["id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return b"".join([
            self._event("output_item.added", output_index=index, item=begun),
            self._event("function_call_arguments.delta", **place, delta=item["arguments"]),
            self._event("function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"]),
            self._event("output_item.done", output_index=index, item=item),
        ])  # fmt: skip

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        self._number += 1
        return sse_event({"type": f"response.{kind}", "sequence_number": self._number - 1, **fields})

    def _text_position(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _message(self, text: str | None, status: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
        content = [] if text is None else [_part(text, logprobs)]
        return {"type": "message", "id": self._message_id, "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": self._request.overrides.parallel_tool_calls,
            "previous_response_id": self._previous,
            "store": self._store,
            "text": {"format": {"type": "text"}, **(self._body.get("text") or {})},
            "tool_choice": self._body.get("tool_choice") or "auto",
            "tools": self._body.get("tools") or [],
            "truncation": "disabled",
            "usage": usage,
            **{name: self._body.get(name) for name in ECHOED},
        }


def read(body: Body) -> ChatRequest:
    """Parse the body. Raises GatewayError."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else objects(given, "input")
    messages: list[Message] = []
    if instructions := text_of(body.get("instructions"), "instructions"):
        messages.append({"role": "system", "content": instructions})
    own_messages = len(messages)
    turn: list[dict[str, Any]] = []
    for item in items:
        # part of a model's turn: its text, calls and thoughts are separate items
        if item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant":
            turn.append(item)
            continue
        messages += _turn(turn)
        turn = []
        messages.append(_message(item))
    messages += _turn(turn)
    if not items:
        raise bad_request("`input` must be text or a list of items, and must not be empty", param="input")
    tools = [_tool(tool) for tool in objects(body.get("tools"), "tools")]
    stream_options(body)
    choice = body.get("tool_choice")
    wanted = replace(read_overrides(body, OWN_FIELDS), top_logprobs=_top_logprobs(body))
    offered, forced = offered_tools(choice, tools), forced_calls(choice, tools)
    return ChatRequest(messages, offered, wanted, forced=forced, own_messages=own_messages, results_follow_calls=False)


def _top_logprobs(body: Body) -> int | None:
    count = read_top_logprobs(body, "top_logprobs")
    return count if count or LOGPROBS in (body.get("include") or ()) else None


def _turn(items: list[dict[str, Any]]) -> list[Message]:
    response = [item for item in items if item.get("role") == "assistant"]
    calls = [_called(item) for item in items if item.get("type") == "function_call"]
    if not response and not calls:
        return []
    text = "".join(text_of(item.get("content"), "content") for item in response)
    return [assistant_message(text, calls)]


def _called(item: dict[str, Any]) -> tuple[str, str, Any]:
    """Return (id, name, arguments) of a call."""
    id, name = (text_field(item.get(key), f"the {key} of a function_call") for key in ("call_id", "name"))
    return id, name, item.get("arguments")


def _message(item: dict[str, Any]) -> Message:
    if item.get("type") == "function_call_output":
        output = text_of(item.get("output"), "output")
        id = text_field(item.get("call_id"), "the call_id of a function_call_output")
        return {"role": "tool", "content": output, "tool_call_id": id}
    role = ROLES.get(str(item.get("role")))
    if item.get("type") not in (None, "message") or role is None:
        what = item.get("type") or f"role {item.get('role')!r}"
        raise bad_request(f"`input` has an item of {what}, which this gateway does not support", param="input")
    return {"role": role, "content": text_of(item.get("content"), "content")}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise bad_request(
            f"a tool of type {tool.get('type')!r} runs at its provider, which this gateway is not; offer a tool of your own",
            param="tools",
        )
    check_fields(tool, ("type", "name", "description", "parameters"), TOOL, "tools[]")
    return function_schema(tool.get("name"), tool.get("description"), tool.get("parameters"))


def _part(text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _function_call(call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id}
    return {**item, "name": name, "arguments": arguments, "status": status}
