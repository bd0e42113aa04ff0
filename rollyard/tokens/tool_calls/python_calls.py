"""Calls as in Python, `get(path="a", n=5)`: Llama 4 and ToolACE (a list without tags), LFM2, OLMo 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.tokens.tool_calls.argument_types import ArgumentTypes
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.family_parser import FamilyParser
from rollyard.tokens.tool_calls.json_calls import JsonCalls
from rollyard.tokens.tool_calls.python_literals import LiteralReader

BEGIN = re.compile(r"\s*(?:```\w*\s*)?(\[)?\s*")
NAME = re.compile(r"[A-Za-z_][\w.\-]*(?=\s*\()")


class PythonCalls(JsonCalls):
    """LFM2, which also writes JSON between its tags. LFM2.5's template writes texts in quotes as they are."""

    marks: tuple[str, ...] = ("<|tool_call_start|>",)
    closing = "<|tool_call_end|>"
    unescaped = True

    @property
    def form(self) -> str:  # type: ignore[override]
        return f"Write {self.marks[0]}[NAME(key=value, ...)]{self.closing} with one Python call for each tool."

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        at += len(next(mark for mark in self.marks if text.startswith(mark, at)).removesuffix("["))
        begin = BEGIN.match(text, at)
        assert begin is not None
        if text[begin.end() : begin.end() + 1] == "{":
            return self.read_json(text, at)
        return self._calls(text, begin.end(), bool(begin[1]))

    def _calls(self, text: str, at: int, in_list: bool) -> Iterator[ToolCall | int]:
        types = ArgumentTypes(self.tools)
        reader = LiteralReader(text, at, (lambda tool: types.schema(tool).names) if self.unescaped else None)
        while reader.skip() != "]" and not (self.closing and text.startswith(self.closing, reader.at)):
            if reader.at == len(text):
                raise MalformedCall(f"{']' if in_list else self.closing} is missing")
            yield reader.call()
            yield reader.at
            if reader.skip() in (",", ";"):
                reader.at += 1
        if reader.skip() == "]" and in_list:
            reader.at += 1
        reader.skip()
        if self.closing and text.startswith(self.closing, reader.at):
            reader.at += len(self.closing)
        elif self.closing and self.closing in text[reader.at :]:
            raise MalformedCall(f"something else stands behind the calls: {text[reader.at : reader.at + 40]!r}")
        yield reader.at

    calls_form = FamilyParser.calls_form


class Olmo3(PythonCalls):
    """OLMo 3, which writes a call a line."""

    marks = ("<function_calls>",)
    closing = "</function_calls>"
    unescaped = False


class Pythonic(PythonCalls):
    """Llama 4, ToolACE and others, which write a list without tags. A list is a call only if it begins with the name of
    an offered tool, or if the turn consists of it."""

    marks = ("<|python_start|>", "<|python_tag|>", "[")
    closing = "<|python_end|>"
    bare = True
    unescaped = False

    form = "Write nothing but one list [NAME(key=value, ...)] with one Python call for each tool."

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self._names = ArgumentTypes(tools).tools

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        mark = next(mark for mark in self.marks if text.startswith(mark, at))
        begin = BEGIN.match(text, at + len(mark.removesuffix("[")))
        assert begin is not None
        name = NAME.match(text, begin.end())
        if name is None or not (name[0] in self._names or not text[:at].strip()):
            raise NoCall("no call begins here")
        return self._calls(text, begin.end(), bool(begin[1]))
