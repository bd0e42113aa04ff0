"""The interface that each API implements. An API parses requests, and formats responses, streams and errors."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic_core import to_json

from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.chat_request import ChatResponse, Piece, SendPiece
from rollyard.gateway.requests.ignored_fields import STREAM
from rollyard.gateway.requests.sampling_overrides import check_fields
from rollyard.gateway.session.session import GatewaySession

Body = Mapping[str, Any]
MAX_MODEL = 512
"""Longest name of a model in characters. Some APIs repeat the name in every piece of a stream."""
LOGPROB_CHARACTERS = 60
"""Approximate length of a logprob in an answer."""


class Exchange(Protocol):
    """One call of one API. The constructor parses the request's body. It raises GatewayError if the body is not
    valid."""

    stream: bool

    async def run(self, session: GatewaySession, on_piece: SendPiece | None) -> Sequence[ChatResponse]:
        """Return the answers. Only some APIs let a call want more than one."""

    def response_body(self, responses: Sequence[ChatResponse]) -> dict[str, Any]:
        """Return the response in one piece."""

    def text_events(self, piece: Piece) -> bytes:
        """Return the events for a piece of text. For the first piece, they begin with the events that open the
        stream."""

    def end_events(self, responses: Sequence[ChatResponse]) -> bytes:
        """Return the events for everything after the text."""

    def error_events(self, refusal: GatewayError) -> bytes:
        """Return the events for an error in the middle of the stream."""


def openai_error(refusal: GatewayError) -> dict[str, Any]:
    error = {"message": str(refusal), "type": refusal.kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def model_of(body: Body) -> str:
    """Return the model's name. Any name is accepted: a session has one policy, and each harness has its own name for
    the model."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("`model` must be the name of a model", param="model")
    if len(model) > MAX_MODEL:
        raise bad_request(f"`model` may have at most {MAX_MODEL} characters", param="model")
    return model


def flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false", param=name)
    return bool(value)


def stream_options(body: Body, *own: str) -> Body:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object", param="stream_options")
    check_fields(options or {}, own, STREAM, "stream_options")
    return options or {}


def wants_usage(body: Body) -> bool:
    return bool(stream_options(body, "include_usage").get("include_usage"))


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def unix_now() -> int:
    return int(time.time())


def answer_characters(responses: Sequence[ChatResponse]) -> int:
    """Return the approximate length of answers as JSON."""
    return sum(
        len(response.content) + sum(LOGPROB_CHARACTERS * (1 + len(one.likeliest)) for one in response.logprobs)
        for response in responses
    )


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """Format a body as JSON. Python's own `json` would take five times as long, and no other thread runs meanwhile."""
    try:
        return to_json(body)
    except ValueError:  # the policy wrote half of a surrogate pair into arguments
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def sse_data(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(body) + b"\n\n"


def sse_event(body: Mapping[str, Any]) -> bytes:
    """Format an event. The `type` in the body is also the event's name."""
    return f"event: {body['type']}\n".encode() + sse_data(body)
