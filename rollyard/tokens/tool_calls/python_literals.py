"""Reads Python literals and calls such as `get(path="a", n=5)`, which some families write. Nothing is evaluated."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection
from typing import Any

from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ToolCall
from rollyard.tokens.tool_calls.call_json import MAX_DEPTH, TOO_DEEP, checked

WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
SPACE = re.compile(r"\s*")
NAME = re.compile(r"([A-Za-z_][\w.\-]*)\s*\(")
KEY = re.compile(r"([A-Za-z_]\w*)\s*=")
WORD = re.compile(r"[A-Za-z_]\w*")
NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
# Possessive quantifiers prevent backtracking in long texts.
STRING = re.compile(
    r"""[rRbBuU]?(?:'{3}(?:[^\\']|\\.|'(?!''))*+'{3}|"{3}(?:[^\\"]|\\.|"(?!""))*+"{3}"""
    r"""|'(?:[^\\']|\\.)*+'|"(?:[^\\"]|\\.)*+")""",
    re.DOTALL,
)
LISTS = {"[": "]", "(": ")"}
_CALL_ENDS = r"(?:,\s*+)?\)\s*+(?:[,;]?\s*+[A-Za-z_][\w.\-]*+\s*+\(|\]?\s*+(?:<|\Z))"
BEHIND = re.compile(rf"\s*+(?:(?:,\s*+)?[A-Za-z_]\w*+\s*+=|{_CALL_ENDS})")
"""Text behind an argument: the next argument, or the end of the call with the next call or the end of the calls."""
UNESCAPED_END = re.compile(rf"'(?=\s*+(?:,\s*+(?P<key>[A-Za-z_]\w*+)\s*+=|{_CALL_ENDS}))")
"""End of a text that may contain quotes: a quote with what follows an argument. `key`: the next argument."""


def literal(text: str) -> Any:
    """Return the value of a text that is one literal. Raises MalformedCall."""
    reader = LiteralReader(text)
    value = reader.value()
    if text[reader.at :].strip():
        raise MalformedCall("something else stands behind the value")
    return value


class LiteralReader:
    """Reads literals and calls one after the other. `at`: position of the next one."""

    def __init__(self, text: str, at: int = 0, unescaped: Callable[[str], Collection[str]] | None = None) -> None:
        """`unescaped`: names of a tool's arguments, if quotes in their texts may lack escapes."""
        self.at = at
        self._text, self._unescaped = text, unescaped

    def call(self) -> ToolCall:
        """Read a call. Raises MalformedCall, and NoCall if no name with a parenthesis stands here."""
        name = self._match(NAME)
        if name is None:
            raise NoCall(f"name(key=value) is missing at {self._quoted()}")
        arguments: dict[str, Any] = {}

        def one() -> None:
            key = self._match(KEY)
            if key is None:
                raise MalformedCall(f"each argument of {name[1]} needs its name: name(key=value)")
            arguments[key[1]] = self._argument(name[1])

        self._items(")", one)
        try:
            return ToolCall(name[1], checked(arguments))
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedCall(str(error)) from None

    def _argument(self, tool: str) -> Any:
        """Read an argument's value. A text that is no literal as it stands ends where an argument of the tool can end."""
        in_quotes, start = self.skip() == "'", self.at
        try:
            value, error = self.value(), None
        except MalformedCall as failed:
            value, error = None, failed
        if self._unescaped and in_quotes and (error is not None or not BEHIND.match(self._text, self.at)):
            keys = {None, *self._unescaped(tool)}
            end = next((end for end in UNESCAPED_END.finditer(self._text, start + 1) if end["key"] in keys), None)
            if end is not None:
                self.at = end.end()
                return self._text[start + 1 : end.start()]
        if error is not None:
            raise error
        return value

    def value(self, depth: int = 0) -> Any:
        """Read a literal, which may be spelled as in Python or in JSON. Raises MalformedCall."""
        if depth > MAX_DEPTH:
            raise MalformedCall(TOO_DEEP)
        if (string := self._match(STRING)) is not None:
            return _string(string[0])
        if (number := self._match(NUMBER)) is not None:
            try:
                return ast.literal_eval(number[0])
            except (ValueError, SyntaxError):  # leading zeros, or thousands of digits
                raise MalformedCall(f"{number[0][:20]} is no number") from None
        if (word := self._match(WORD)) is not None:
            if word[0] not in WORDS:
                raise MalformedCall(f"{word[0][:40]} is no value: a text needs quotes")
            return WORDS[word[0]]
        opening = self._text[self.at : self.at + 1]
        if opening in LISTS:
            self.at += 1
            values: list[Any] = []
            self._items(LISTS[opening], lambda: values.append(self.value(depth + 1)))
            return values
        if opening != "{":
            raise MalformedCall(f"a value is missing at {self._quoted()}")
        self.at += 1
        pairs: dict[Any, Any] = {}

        def pair() -> None:
            key = self.value(depth + 1)
            if not isinstance(key, str) or self.skip() != ":":
                raise MalformedCall("an object needs texts as keys: {'key': value}")
            self.at += 1
            pairs[key] = self.value(depth + 1)

        self._items("}", pair)
        return pairs

    def skip(self) -> str:
        """Skip white space. Return the next character; empty at the end of the text."""
        found = SPACE.match(self._text, self.at)
        assert found is not None
        self.at = found.end()
        return self._text[self.at : self.at + 1]

    def _items(self, closing: str, one: Callable[[], None]) -> None:
        """Read what stands between commas, up to the closing bracket."""
        while self.skip() != closing:
            if self.at == len(self._text):
                raise MalformedCall(f"{closing} is missing at the end")
            one()
            if self.skip() == ",":
                self.at += 1
            elif self.skip() != closing and closing != ")":  # a call's arguments have names, which separate them
                raise MalformedCall(f"{closing} or a comma is missing at {self._quoted()}")
        self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        found = pattern.match(self._text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def _quoted(self) -> str:
        return repr(self._text[self.at : self.at + 20]) if self._text[self.at :] else "the end"


def _string(written: str) -> str:
    if "\n" in written and written.lstrip("rRuUbB")[:3] not in ("'''", '"""'):
        written = written.replace("\r", "\\r").replace("\n", "\\n")  # models write line breaks in quotes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for an unknown escape such as \d
            value = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError) as error:
        raise MalformedCall(f"{written[:40]} is no text in quotes: {error}") from None
    if not isinstance(value, str):
        raise MalformedCall(f"{written[:40]} is no text")
    return value
