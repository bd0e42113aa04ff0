"""Parsers of the tool calls in a turn's text. A module such as `mistral` parses the form of one or two model families.

A parser never runs a tool and never raises, whatever the text is. A malformed call is a mistake of the model. It becomes
`ParsedTurn.error`, which the model gets as an answer together with the correct form.
"""

from __future__ import annotations

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.call_forms import forced_calls
from rollyard.tokens.tool_calls.guarded_parser import parse_safely
from rollyard.tokens.tool_calls.parser_choice import NoParserFits, marks_of, parser_for, parsers_that_read
from rollyard.tokens.tool_calls.plain_turn import plain_turn, without_thoughts

__all__ = [
    "NoParserFits",
    "ParsedTurn",
    "ToolCall",
    "ToolCallParser",
    "forced_calls",
    "marks_of",
    "parse_safely",
    "parser_for",
    "parsers_that_read",
    "plain_turn",
    "without_thoughts",
]
