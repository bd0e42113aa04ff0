"""Guards against errors of parsers, which may be plug-ins. A sampled turn is recorded even if its parser fails."""

from __future__ import annotations

import logging

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.call_json import checked

log = logging.getLogger(__name__)


def parse_safely(parser: ToolCallParser, text: str, opened: str = "") -> ParsedTurn:
    """Parse a turn. If the parser fails or its result cannot be stored, return the turn with an `error`.

    `opened`: `SampledTurn.opened`.
    """
    try:
        turn = parser.parse(opened + text)
        if not isinstance(turn, ParsedTurn):
            raise TypeError(f"it gave {type(turn).__name__}")
        for call in turn.calls:
            _check(call)
    except Exception as error:
        log.exception("the parser of tool calls failed on a turn")
        return ParsedTurn(text, (), f"the parser of tool calls failed: {error!r}")
    return turn


def _check(call: ToolCall) -> None:
    """Check that a call can be stored. Raises TypeError or an error of `checked` if the call cannot be stored."""
    if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
        raise TypeError(f"it gave the call {call!r}")
    checked(call.arguments)
