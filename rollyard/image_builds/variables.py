"""Variables and quotes in the arguments of a Dockerfile's instructions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATION = re.compile(r"(:?[-+?])(.*)", re.DOTALL)
_SPACE = " \t\n"


class BadText(Exception):
    """Text that cannot be read. `str()` is a sentence."""


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return the text without quotes, with the values of its variables. Raises BadText."""
    return "".join(_Reader(text, variables, escape, split=False).words())


def split(text: str, variables: Mapping[str, str], escape: str = "\\") -> list[str]:
    """Return the words of a text, expanded. Raises BadText."""
    return _Reader(text, variables, escape, split=True).words()


def pairs(text: str, variables: Mapping[str, str], escape: str = "\\") -> dict[str, str]:
    """Return `NAME=VALUE NAME=VALUE…`, or the older form `NAME VALUE`, expanded. Raises BadText."""
    first, _, rest = text.strip().partition(" ")
    if "=" not in first:
        if not rest.strip():
            raise BadText(f"{first} has no value: write {first}=VALUE")
        return {first: expand(rest.strip(), variables, escape)}
    found = {}
    for word in split(text, variables, escape):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadText(f"{word!r} is not NAME=VALUE; put quotes around a value with spaces")
        found[name] = value
    return found


def expand_plain(text: str, variables: Mapping[str, str]) -> str:
    """Return a text in which only variables are replaced: quotes stay."""
    return _Reader(text, variables, "\\", split=False).replaced()


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, *, split: bool) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._split = split
        self._at = 0

    def words(self) -> list[str]:
        found: list[str] = []
        word: list[str] | None = None
        while self._at < len(self._text):
            sign = self._text[self._at]
            self._at += 1
            if self._split and sign in _SPACE:
                if word is not None:
                    found.append("".join(word))
                word = None
                continue
            word = word if word is not None else []
            if sign == "'":
                word.append(self._until("'"))
            elif sign == '"':
                word.append(self.replaced('"'))
            elif sign == self._escape:
                word.append(self._text[self._at : self._at + 1])
                self._at += 1
            elif sign == "$":
                word.append(self._variable())
            else:
                word.append(sign)
        if word is not None:
            found.append("".join(word))
        return found

    def _until(self, end: str) -> str:
        start, place = self._at, self._text.find(end, self._at)
        if place < 0:
            raise BadText(f"a quote {end} has no end: add one")
        self._at = place + 1
        return self._text[start:place]

    def replaced(self, end: str = "") -> str:
        """Read up to `end`, or without it the whole text. Only variables are replaced."""
        parts: list[str] = []
        while self._at < len(self._text):
            sign = self._text[self._at]
            self._at += 1
            if sign == end:
                return "".join(parts)
            if sign == self._escape and self._text[self._at : self._at + 1] in (end or "$", "$", self._escape):
                parts.append(self._text[self._at])
                self._at += 1
            else:
                parts.append(self._variable() if sign == "$" else sign)
        if end:
            raise BadText(f"a quote {end} has no end: add one")
        return "".join(parts)

    def _variable(self) -> str:
        """Read what follows a $."""
        if self._text[self._at : self._at + 1] != "{":
            name = _NAME.match(self._text, self._at)
            if name is None:
                return "$"
            self._at = name.end()
            return self._variables.get(name[0], "")
        start, depth = self._at + 1, 0
        for place in range(self._at, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[place], 0)
            if depth == 0:
                break
        else:
            raise BadText("a ${ has no }: add one")
        self._at = place + 1
        inner = self._text[start:place]
        name = _NAME.match(inner)
        if name is None:
            raise BadText(f"${{{inner}}} names no variable: write ${{NAME}}")
        rest = inner[name.end() :]
        value = self._variables.get(name[0])
        if not rest:
            return value or ""
        operation = _OPERATION.fullmatch(rest)
        if operation is None:
            raise BadText(f"${{{inner}}} is not supported: write ${{NAME}}, ${{NAME:-DEFAULT}} or ${{NAME:+VALUE}}")
        given = bool(value) if operation[1].startswith(":") else value is not None
        word = expand(operation[2], self._variables, self._escape)
        match operation[1][-1]:
            case "-":
                return (value or "") if given else word
            case "+":
                return word if given else ""
            case _:
                if not given:
                    raise BadText(f"the variable {name[0]} has no value: {word or 'set it'}")
                return value or ""
