"""Types of arguments for families that write each argument as text. The tool's JSON schema says what the text means.

The text is tried as each type that the schema allows, in this order: null, boolean, integer, number, object, array,
string. Text that is of none of them is taken as JSON if it is JSON, else it stays text, and the tool reports it. vLLM does
the same. An argument without a declared type stays text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rollyard.tokens.tool_calls.base import MalformedCall
from rollyard.tokens.tool_calls.call_json import checked, load
from rollyard.tokens.tool_calls.python_literals import literal

MAX_REFERENCES = 16
"""Greatest depth of schemas within schemas that is looked at."""
OF_VALUE = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
INTEGER = re.compile(r"[+-]?\d{1,4000}")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
ALIASES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
"""Python's names of types, which tools declare although JSON schema does not have them."""
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Schema:
    """JSON schema of a value."""

    written: Any
    root: Mapping[str, Any]
    """Schema to which references point."""
    python: bool = False
    """Whether the family's template writes values as Python does, so that `None` is null also where text is allowed."""

    @cached_property
    def types(self) -> frozenset[str]:
        """Types that the schema allows. Empty if it declares none that is known."""
        return frozenset(_types(self.written, self.root))

    def argument(self, name: str) -> Schema:
        """Return the schema of a property."""
        for schema in _schemas(self.written, self.root):
            if name in (properties := _object(schema.get("properties"))):
                return replace(self, written=properties[name])
        return replace(self, written=_object(self.written).get("additionalProperties"))

    @property
    def items(self) -> Schema:
        """Schema of the items of a list."""
        found = (schema["items"] for schema in _schemas(self.written, self.root) if "items" in schema)
        return replace(self, written=next(found, None))

    @property
    def names(self) -> frozenset[str]:
        """Names of the properties."""
        return frozenset(key for one in _schemas(self.written, self.root) for key in _object(one.get("properties")))

    def value(self, name: str, text: str) -> Any:
        """Return the value that a text means. Raises MalformedCall for a text that cannot be stored."""
        return _typed(storable(name, text), self.types, python=self.python)


class ArgumentTypes:
    """The declared types of all arguments of the tools."""

    def __init__(self, tools: Sequence[dict[str, Any]], *, python: bool = False) -> None:
        """`python`: as in `Schema`."""
        self._python = python
        self._tools = {}
        for tool in tools:
            function = _object(tool.get("function", tool))
            if isinstance(name := function.get("name"), str):
                self._tools[name.strip()] = _object(function.get("parameters"))

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools."""
        return frozenset(self._tools)

    def schema(self, tool: str) -> Schema:
        """Return the schema of a tool's arguments."""
        written = self._tools.get(tool, {})
        return Schema(written, written, self._python)


def storable(name: str, text: str) -> str:
    """Return a text that can be stored. Raises MalformedCall for another one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedCall(f"`{name}` is no text: it has a lone surrogate") from None
    return text


def _typed(text: str, types: frozenset[str], *, python: bool) -> Any:
    if types <= {"string"}:
        return text
    word, loose = text.strip(), python or "string" not in types
    if "null" in types and (word.lower() == "null" or (loose and word == "None")):
        return None
    if "boolean" in types and word.lower() in BOOLEANS:
        return BOOLEANS[word.lower()]
    if "boolean" in types and word in ("0", "1") and not types & {"integer", "number", "string"}:
        return word == "1"
    if types & {"integer", "number"} and (number := _number(word, types)) is not None:
        return number
    if types & {"object", "array"} and word[:1] in "{[(" and (found := _collection(word, types)) is not None:
        return found
    if "string" in types:
        return text
    try:
        value = load(word)
    except MalformedCall:
        return text
    return _typed(value, types, python=python) if isinstance(value, str) and value != text else value


def _number(word: str, types: frozenset[str]) -> int | float | None:
    if INTEGER.fullmatch(word):
        return None if "string" in types and word.lstrip("+-")[:1] == "0" != word.lstrip("+-") else int(word)
    value = float(word) if NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(value):
        return None
    whole = value.is_integer() and abs(value) < 2**53
    if "number" in types:
        return value
    return int(value) if whole else None


def _collection(word: str, types: frozenset[str]) -> Any:
    """Return an object or an array that is written as JSON or as Python; None if the word is neither."""
    for read in (load, literal):
        try:
            value = checked(read(word))
        except (MalformedCall, ValueError, TypeError, RecursionError):
            continue
        if OF_VALUE[type(value)] in types:
            return value
    return None


def _types(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Yield the types that a schema allows."""
    for one in _schemas(schema, root):
        declared = one.get("type")
        for kind in declared if isinstance(declared, list) else [declared]:
            if isinstance(kind, str):
                yield ALIASES.get(kind.strip().lower(), kind.strip().lower())
        if one.get("nullable") is True:
            yield "null"
        if declared is not None:
            continue
        values = one.get("enum", [one["const"]] if "const" in one else [])
        yield from (OF_VALUE[type(v)] for v in values if type(v) in OF_VALUE) if isinstance(values, list) else ()
        yield from (kind for key, kind in (("properties", "object"), ("items", "array")) if key in one)


def _schemas(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a schema, and those that it refers to or combines."""
    if not isinstance(schema, dict) or depth > MAX_REFERENCES:
        return
    yield schema
    if isinstance(schema.get("$ref"), str):
        yield from _schemas(_referenced(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema[key] if isinstance(schema.get(key), list) else ():
            yield from _schemas(inner, root, depth + 1)


def _referenced(pointer: str, root: Mapping[str, Any]) -> Any:
    """Return the schema at a JSON pointer such as `#/$defs/Size`; None if there is none."""
    place: Any = root
    for key in pointer.removeprefix("#").split("/")[1:]:
        place = _object(place).get(key.replace("~1", "/").replace("~0", "~"))
    return place


def _object(value: Any) -> dict[str, Any]:
    """Return `value` if it is an object, else an empty object. Schemas come from callers and may contain anything."""
    return value if isinstance(value, dict) else {}
