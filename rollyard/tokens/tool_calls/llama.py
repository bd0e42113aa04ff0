"""Calls of Llama 3.x, Llama 4 and xLAM: bare JSON objects with `name` and `parameters`, or a list of them.

Text or a code fence may stand in front of the JSON. JSON that is no call is part of the answer. Llama also writes Python
code after PYTHON_TAG.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import ARGUMENTS, call_of, load_at
from rollyard.tokens.tool_calls.json_calls import JsonCalls
from rollyard.tokens.tool_calls.python_literals import LiteralReader

PYTHON_TAG = "<|python_tag|>"
BUILT_IN = "ipython"
"""Name of the tool that runs the code after PYTHON_TAG. Llama's chat template uses this name for the role of results."""
BEGIN = re.compile(r"(?P<fence>```\w*\s*)?(?P<json>[{\[])")
LOOKS = re.compile(r'[{\[\s]*"(?:name|parameters|arguments|function|type|id)"\s*:')
"""JSON that may be a call. Other JSON is part of the answer."""
KEYS = {"name", "type", "id", "function", *ARGUMENTS}
SEPARATOR = re.compile(r"\s*(?:;|,(?=\s*[{\[]))?\s*")
FENCE_ENDS = re.compile(r"\s*```")
CODE_CALL = re.compile(r"\s*[\w.]+\.call\(")


class BareJson(JsonCalls):
    """xLAM."""

    marks: tuple[str, ...] = ("```", "{", "[")
    in_list = bare = True

    @property
    def form(self) -> str:  # type: ignore[override]
        return 'Write nothing but one JSON list [{"name": "...", "arguments": {...}}] with one object for each call.'

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        begin = BEGIN.match(text, at)
        if begin is None or LOOKS.match(text, begin.start("json")) is None:
            raise NoCall("no call begins here")
        position = begin.start("json")
        while text[position : position + 1] in ("{", "["):
            value, end = load_at(text, position)
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, dict) or not KEYS.issuperset(one):
                    raise NoCall("this JSON is no call")
                yield call_of(one, self.keys)
            yield end
            following = SEPARATOR.match(text, end)
            assert following is not None
            position = following.end()
        fence = FENCE_ENDS.match(text, end) if begin["fence"] else None
        yield fence.end() if fence is not None else position if text[end:position].strip() else end

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'{{"name": "{name}", "{self.keys[0]}": '

        if self.in_list:
            return tagged_calls(tools, lambda name: f"[{begin(name)}", "}]", single=True)
        return tagged_calls(tools, begin, "}", separator="; ", single=single)


class Llama3(BareJson):
    form = (
        'Write nothing but one JSON object {"name": "...", "parameters": {...}}; '
        "several calls are several objects with ; between them."
    )
    marks = (PYTHON_TAG, *BareJson.marks)
    keys = ("parameters", "arguments")
    in_list = False
    wrappers = ("<|python_start|>", "<|python_end|>")

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        if not text.startswith(PYTHON_TAG, at):
            return super().read(text, at)
        return self._tagged(text, at + len(PYTHON_TAG))

    def _tagged(self, text: str, at: int) -> Iterator[ToolCall | int]:
        code = text[at:].strip()
        if not code:
            raise MalformedCall(f"nothing stands behind {PYTHON_TAG}")
        if code.startswith(("{", "[", "```")):
            yield from super().read(text, at + text[at:].index(code[0]))
            return
        if CODE_CALL.match(code):  # search.call(query="…"), as the template writes calls of Llama's own tools
            try:
                call = LiteralReader(code).call()
                yield ToolCall(call.name.removesuffix(".call"), call.arguments)
                yield len(text)
                return
            except MalformedCall:
                pass  # it is code
        yield ToolCall(BUILT_IN, {"code": code})
        yield len(text)
