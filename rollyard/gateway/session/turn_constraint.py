"""The form that a call wants for its turn: a format, a forced tool call, or both."""

from __future__ import annotations

from dataclasses import replace

from rollyard.core.errors import TaskError
from rollyard.gateway.requests.call_errors import bad_request
from rollyard.gateway.requests.chat_request import ChatRequest
from rollyard.tokens.constraint import Constraint
from rollyard.tokens.tool_calls import ToolCallParser, forced_calls


def turn_constraint(request: ChatRequest, parser: ToolCallParser | None) -> Constraint | None:
    """Return the constraint on the turn; None if there is none. Raises GatewayError."""
    wanted, forced = request.overrides.constraint, request.forced
    if (wanted is not None or forced is not None) and request.continued_text:
        raise bad_request(
            "the caller begins the turn, so its form cannot be constrained: end with a message of the user, or leave "
            "out the format and the forced tool",
            param="messages",
        )
    if parser is None or (wanted is None and forced is None):
        return wanted
    single = not request.overrides.parallel_tool_calls or (forced is not None and forced.named)
    try:
        calls = forced_calls(parser, forced.tools if forced is not None else request.tools, single=single)
    except TaskError as error:
        raise bad_request(str(error), param="tool_choice" if forced is not None else "tools") from error
    # a forced call needs no format: the format is that of answers in text
    return Constraint("tool_calls", calls) if forced or wanted is None else replace(wanted, calls=calls)
