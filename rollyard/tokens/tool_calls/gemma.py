"""Calls of Gemma 4 and FunctionGemma: `call:get{path:<|"|>a<|"|>,n:5}` between tags. Keys have no quotes, and texts
stand between tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollyard.tokens.tool_calls.argument_types import ArgumentTypes
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_json import MAX_DEPTH, TOO_DEEP, checked, load, load_at, skip_space
from rollyard.tokens.tool_calls.family_parser import THINK, FamilyParser

NAME = re.compile(r"\s*call:\s*([\w.:/\-]+)\s*(?=\{)")
KEY = re.compile(r"([^\s:{}\[\],\"'<>][^:{}\[\],\"'<>]*):")
WORD = re.compile(r"[^,{}\[\]<>]*")
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class Gemma4(FamilyParser):
    form = 'Write <|tool_call>call:NAME{key:<|"|>text<|"|>,other:5}<tool_call|> for each call.'
    error_role = "user"
    marks: tuple[str, ...] = ("<|tool_call>",)
    closing = "<tool_call|>"
    quote = '<|"|>'
    header = "<|turn>model\n"
    wrappers = (header,)
    thinks = (("<|channel>thought", "<channel|>"), ("<|channel>analysis", "<channel|>"), *THINK)

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(tools)
        self._types = ArgumentTypes(tools, python=True)
        self.remains = re.compile(rf"\}}\s*{re.escape(self.closing)}|{re.escape(self.quote)}")

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        name = NAME.match(text, at + len(self.marks[0]))
        if name is None:
            raise NoCall("call:NAME{ is missing")
        arguments, at = self._object(text, name.end(), name[1], 0)
        try:
            yield ToolCall(name[1], checked(arguments))
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedCall(str(error)) from None
        at = skip_space(text, at)
        if text.startswith(self.closing, at):
            at += len(self.closing)
        elif text[at:] and not text.startswith(self.marks[0], at):
            raise MalformedCall(f"something else stands behind the call: {text[at : at + 40]!r}")
        yield at

    def text_value(self, text: str, tool: str | None, key: str) -> Any:
        """Return the value of a text between quotes. `tool`: None for a text inside another value."""
        return text

    def _object(self, text: str, at: int, tool: str | None, depth: int) -> tuple[dict[str, Any], int]:
        """Read the object at a position. `tool`: name of the tool whose arguments it is."""
        found: dict[str, Any] = {}
        at = skip_space(text, at + 1)
        while text[at : at + 1] != "}":
            key, at = self._key(text, at)
            found[key], at = self._value(text, skip_space(text, at), tool, key, depth + 1)
            at = _behind_comma(text, at, "}")
        return found, at + 1

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith(self.quote, at):
            end = text.find(self.quote, at + len(self.quote))
            behind = skip_space(text, end + len(self.quote))
            if end >= 0 and text[behind : behind + 1] == ":":
                return text[at + len(self.quote) : end], behind + 1
        elif text[at : at + 1] == '"':
            key, behind = load_at(text, at)
            if text[behind : behind + 1] == ":":
                return str(key), behind + 1
        elif (key_ := KEY.match(text, at)) is not None:
            return key_[1].strip(), key_.end()
        raise MalformedCall(f"key: is missing at {text[at : at + 20]!r}")

    def _value(self, text: str, at: int, tool: str | None, key: str, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise MalformedCall(TOO_DEEP)
        if text.startswith(self.quote, at):
            begin = at + len(self.quote)
            end = re.compile(re.escape(self.quote) + r"(?=\s*[,}\]])").search(text, begin)
            if end is None:
                raise MalformedCall(f"the closing {self.quote} of {key} is missing")
            return self.text_value(text[begin : end.start()], tool, key), end.end()
        if text[at : at + 1] == "{":
            return self._object(text, at, None, depth)
        if text[at : at + 1] == "[":
            values: list[Any] = []
            at = skip_space(text, at + 1)
            while text[at : at + 1] != "]":
                value, at = self._value(text, at, None, key, depth + 1)
                values.append(value)
                at = _behind_comma(text, at, "]")
            return values, at + 1
        if text[at : at + 1] == '"':
            return load_at(text, at)
        word = WORD.match(text, at)
        assert word is not None
        bare = word[0].strip()
        if bare in WORDS:
            return WORDS[bare], word.end()
        try:
            return load(bare), word.end()
        except MalformedCall:
            raise MalformedCall(f"{bare[:40]!r} is no value: a text stands between {self.quote}") from None


class FunctionGemma(Gemma4):
    """FunctionGemma, which writes all values as text."""

    form = "Write <start_function_call>call:NAME{key:<escape>value<escape>}<end_function_call> for each call."
    marks = ("<start_function_call>",)
    closing = "<end_function_call>"
    quote = "<escape>"

    def text_value(self, text: str, tool: str | None, key: str) -> Any:
        return text if tool is None else self._types.schema(tool).argument(key).value(key, text)


def _behind_comma(text: str, at: int, closing: str) -> int:
    at = skip_space(text, at)
    if text[at : at + 1] == ",":
        return skip_space(text, at + 1)
    if text[at : at + 1] != closing:
        raise MalformedCall(f"{closing} or a comma is missing at {text[at : at + 20]!r}")
    return at
