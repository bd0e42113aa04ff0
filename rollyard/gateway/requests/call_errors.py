"""Errors of a call. Each API formats them in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.core.errors import RollyardError


class GatewayError(RollyardError):
    """An error that a caller receives. Clients retry by themselves on status 408, 409, 429 and 5xx, but not on others."""

    def __init__(
        self, status: int, kind: str, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """OpenAI's `error.type`."""
        self.code = code
        self.param = param
        self.details: Mapping[str, Any] | None = None
        """Field `details` of the error in Anthropic's API; None if the error has no such field."""
        self.too_long: tuple[int, int] | None = None
        """(tokens of the prompt, tokens of the context), if the prompt does not fit and both numbers are known."""


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> GatewayError:
    return GatewayError(400, "invalid_request_error", message, param=param, code=code)


def too_long(message: str) -> GatewayError:
    """Error with the code from which clients know that a retry does not help."""
    return bad_request(message, code="context_length_exceeded", param="messages")


def prompt_too_long(tokens: int, context: int, *, exact: bool = True) -> GatewayError:
    """Error in the words that OpenAI's clients search for. `exact`: False if the prompt may have more tokens."""
    count = f"{tokens} tokens" if exact else f"at least {tokens} tokens"
    refusal = too_long(
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {count}, "
        "which leaves no room for an answer. Please reduce the length of the messages."
    )
    refusal.too_long = tokens, context
    return refusal


def no_model(name: str, served: str) -> GatewayError:
    message = f"there is no model {name[:100]!r}; this session serves {served!r}, under any name"
    return GatewayError(404, "invalid_request_error", message, code="model_not_found", param="model")


def no_previous_response(id: str) -> GatewayError:
    message = f"Previous response with id {id[:100]!r} not found in this session"
    advice = "name a response of this session that was not deleted, or send the whole conversation in `input`"
    return bad_request(f"{message}; {advice}", param="previous_response_id", code="previous_response_not_found")


def no_response(id: str) -> GatewayError:
    message = f"Response with id {id[:100]!r} not found; a session keeps its latest responses, except those with `store` false"
    return GatewayError(404, "invalid_request_error", message)


def no_threads(advice: str) -> GatewayError:
    """Error with details that Anthropic's client knows. Its tool runner repeats the call without `thread` and continues."""
    refusal = bad_request(f"this gateway cannot apply `thread`; {advice}", param="thread")
    refusal.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return refusal


def template_unusable(message: str) -> GatewayError:
    """Error of the chat template. The conversation is correct, but a retry does not help."""
    return GatewayError(422, "invalid_request_error", message, code="template_unusable")


def tool_calls_unreadable(message: str) -> GatewayError:
    return GatewayError(
        422, "invalid_request_error", f"the calls of these tools would not be read: {message}",
        param="tools", code="tool_calls_unreadable",
    )  # fmt: skip


def too_slow(seconds: float) -> GatewayError:
    return GatewayError(408, "invalid_request_error", f"the request did not arrive within {seconds:g} s; repeat it")


def turn_limit(limit: int, left: int) -> GatewayError:
    """Error with status 403, because every client then stops at once."""
    message = f"this session has made its {limit} model calls; open another one"
    if left > 0:
        message = f"this session has {left} of its {limit} model calls left, and each of `n` answers is one call"
    return GatewayError(403, "permission_error", message, code="turn_limit")


def too_many(limit: int) -> GatewayError:
    message = f"at most {limit} calls of this session may be in flight: repeat the call after others have ended"
    return GatewayError(429, "rate_limit_error", message, code="calls_at_once")


def token_limit(limit: int) -> GatewayError:
    return GatewayError(
        403,
        "permission_error",
        f"the segments of this session have reached {limit} tokens, which is the limit: continue in another session",
        code="token_limit",
    )


def no_session(message: str) -> GatewayError:
    return GatewayError(401, "authentication_error", message, code="invalid_session")


def session_gone(message: str) -> GatewayError:
    return GatewayError(410, "invalid_request_error", message, code="session_gone")


def unavailable(message: str) -> GatewayError:
    return GatewayError(503, "server_error", message, code="unavailable")
