"""Calls of Llama 3.x. A turn with calls is JSON objects with `name` and `parameters`, or Python code after PYTHON_TAG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import call_of, load_first

PYTHON_TAG = "<|python_tag|>"
BUILT_IN = "ipython"
"""Name of the tool that runs the code after PYTHON_TAG. Llama's chat template uses this name for the role of results."""


class Llama3:
    form = (
        'Write nothing but one JSON object {"name": "...", "parameters": {...}}; '
        "several calls are several objects with ; between them."
    )
    error_role = "tool"

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        before, tagged, body = text.partition(PYTHON_TAG)
        if not tagged:
            before, body = "", text
        body = body.strip()
        if body.startswith("{"):
            return self._objects(before.strip(), body)
        if tagged and body:
            return ParsedTurn(before.strip(), (ToolCall(BUILT_IN, {"code": body}),))
        if tagged:
            return ParsedTurn(before.strip(), (), f"nothing stands behind {PYTHON_TAG}")
        return ParsedTurn(body)

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{{"name": "{name}", "parameters": '

        return tagged_calls(tools, begin, "}", separator="; ", single=single)

    @staticmethod
    def _objects(content: str, body: str) -> ParsedTurn:
        calls: list[ToolCall] = []
        try:
            while body:
                value, rest = load_first(body)
                calls.append(call_of(value, _key(value)))
                body = rest.strip().removeprefix(";").strip()
                if body and not body.startswith("{"):
                    raise MalformedCall("something else stands behind the JSON object")
        except MalformedCall as error:
            return ParsedTurn(content, tuple(calls), str(error))
        return ParsedTurn(content, tuple(calls))


def _key(value: Any) -> str:
    """Return the key of the arguments. Llama was trained to write `parameters`, but often writes `arguments`."""
    return "arguments" if isinstance(value, dict) and "parameters" not in value else "parameters"
