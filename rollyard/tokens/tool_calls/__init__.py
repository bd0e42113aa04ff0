"""Reads the tool calls out of a turn's text, in the form of the model's family; one module a family.

What a parser gives never depends on tools being run, and no text makes it raise: a malformed call is the model's doing
and becomes the turn's `error`, answered in words that show the family's own form.
"""

from __future__ import annotations

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.guarded_parser import parse_safely
from rollyard.tokens.tool_calls.hermes import parse
from rollyard.tokens.tool_calls.parser_choice import parser_for

__all__ = ["ParsedTurn", "ToolCall", "ToolCallParser", "parse", "parse_safely", "parser_for"]
