"""A parser may be anyone's, and what was sampled is there to be recorded, whatever it does."""

from __future__ import annotations

import logging

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.call_json import checked

log = logging.getLogger(__name__)


def parse_safely(parser: ToolCallParser, text: str) -> ParsedTurn:
    """What it makes of a turn; where it fails, or gives what no trajectory can hold, a turn with a call that cannot be read."""
    try:
        turn = parser.parse(text)
        if not isinstance(turn, ParsedTurn):
            raise TypeError(f"it gave {type(turn).__name__}")
        for call in turn.calls:
            _check(call)
    except Exception as error:
        log.exception("the parser of tool calls failed on a turn")
        return ParsedTurn(text, (), f"the parser of tool calls failed: {error!r}")
    return turn


def _check(call: ToolCall) -> None:
    """Raises Malformed, TypeError, ValueError."""
    if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
        raise TypeError(f"it gave the call {call!r}")
    checked(call.arguments)
