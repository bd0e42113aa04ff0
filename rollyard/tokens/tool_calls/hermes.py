"""Calls in the form Hermes, which Qwen2.5, Qwen3 and many other families use: JSON in a pair of tool_call tags."""

from __future__ import annotations

from rollyard.tokens.tool_calls.json_calls import JsonCalls

FORM = 'Write one JSON object {"name": "...", "arguments": {...}} inside <tool_call></tool_call>.'
"""Text in a tool result after a malformed call. Do not change this text, because users' policies are trained with it."""


class Hermes(JsonCalls):
    form = FORM
    marks = ("<tool_call>",)
    closing = "</tool_call>"
