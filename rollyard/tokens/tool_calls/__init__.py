"""Parsers of the tool calls in a turn's text: one module for the form of each model family.

A parser's result does not depend on any tool, and no text makes a parser raise. A malformed call is the model's
mistake. It becomes the turn's `error`, which the answer to the model quotes together with the family's form.
"""

from __future__ import annotations

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.guarded_parser import parse_safely
from rollyard.tokens.tool_calls.hermes import parse
from rollyard.tokens.tool_calls.parser_choice import parser_for

__all__ = ["ParsedTurn", "ToolCall", "ToolCallParser", "parse", "parse_safely", "parser_for"]
