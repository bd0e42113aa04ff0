"""A check of JSON schemas before they go to an engine: faults are reported with their place, and the size is limited.

The check does not know every keyword. An engine refuses the keywords that it cannot apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from rollyard.gateway.requests.call_errors import GatewayError, bad_request

MAX_SCHEMA, MAX_DEPTH, MAX_PATTERN = 1 << 16, 32, 2000
"""Greatest length of a schema as JSON, its greatest depth, and the greatest length of a pattern."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BROKEN = re.compile("unterminated|unbalanced|nothing to repeat|min repeat greater|bad character range")
"""Python's messages for patterns that are wrong in every dialect."""
LATE = re.compile(r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\N\{[^{}]*\}|[^\x00-\xff]")
"""Characters beyond Latin-1, also as escapes. Python goes through ranges of them one by one: the patterns of one schema
would take minutes. The check puts the last character of Latin-1 in their place."""
CASELESS = re.compile(r"\(\?[a-zA-Z]*i")
"""Flag for which Python goes through every range. Only the engine checks such patterns."""


def check_schema(schema: Any, where: str) -> None:
    """Raise GatewayError for the first fault. `where`: path of the schema in the request."""
    try:
        length = len(json.dumps(schema))
    except RecursionError:
        raise _too_deep(where) from None
    if length > MAX_SCHEMA:
        raise _fault(where, f"has {length} characters; a schema may have at most {MAX_SCHEMA}")
    waiting = [(where, schema, 1)]
    while waiting:
        path, node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise _too_deep(path)
        if isinstance(node, bool) and depth > 1:
            continue
        if not isinstance(node, dict):
            raise _fault(path, "must be a schema: a JSON object")
        _check_keywords(node, schema, path)
        waiting += [(at, one, depth + 1) for at, one in _inner(node, path)]


def _check_keywords(node: dict[str, Any], root: dict[str, Any], path: str) -> None:
    types = node.get("type")
    if types is not None:
        given = types if isinstance(types, list) else [types]
        if not given or any(one not in TYPES for one in given):
            raise _fault(f"{path}.type", f"must be one of {', '.join(TYPES)}, or a list of them")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _fault(f"{path}.required", "must be a list of names")
    if "enum" in node and (not isinstance(node["enum"], list) or not node["enum"]):
        raise _fault(f"{path}.enum", "must be a list of at least one value")
    for name in COUNTS:
        count = node.get(name, 0)
        if isinstance(count, bool) or not isinstance(count, int | float) or count < 0:
            raise _fault(f"{path}.{name}", "must be a number of at least 0")
    if "pattern" in node:
        check_pattern(node["pattern"], f"{path}.pattern")
    if "$ref" in node:
        _check_reference(node["$ref"], root, f"{path}.$ref")


def check_pattern(pattern: Any, where: str) -> None:
    """Raise GatewayError for a pattern that is too long, or wrong in every dialect of regular expressions."""
    if not isinstance(pattern, str):
        raise _fault(where, "must be a regular expression")
    if len(pattern) > MAX_PATTERN:
        raise _fault(where, f"has {len(pattern)} characters; a pattern may have at most {MAX_PATTERN}")
    if CASELESS.search(pattern):
        return
    try:
        re.compile(LATE.sub("\xff", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        if not isinstance(error, re.error) or BROKEN.search(str(error)):
            raise _fault(where, f"is not a regular expression: {error}") from None


def _check_reference(reference: Any, root: dict[str, Any], path: str) -> None:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise _fault(path, "must be a place in the same schema, such as `#/$defs/NAME`")
    node: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            raise _fault(path, f"names {reference[:100]!r}, which the schema does not have")


def _inner(node: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside a schema, with their paths."""
    for name in MAPS:
        if name in node:
            if not isinstance(node[name], dict):
                raise _fault(f"{path}.{name}", "must be an object of schemas")
            yield from ((f"{path}.{name}.{key}", one) for key, one in node[name].items())
    for name in LISTS:
        if name in node:
            if not isinstance(node[name], list) or not node[name]:
                raise _fault(f"{path}.{name}", "must be a list of at least one schema")
            yield from ((f"{path}.{name}[{i}]", one) for i, one in enumerate(node[name]))
    for name in SINGLE:
        if name in node:
            inner = node[name]
            yield from (
                ((f"{path}.{name}[{i}]", one) for i, one in enumerate(inner))
                if isinstance(inner, list)
                else [(f"{path}.{name}", inner)]
            )


def _too_deep(where: str) -> GatewayError:
    return _fault(where, f"is nested too deep; a schema may have at most {MAX_DEPTH} levels")


def _fault(where: str, what: str) -> GatewayError:
    shown = "".join(c if c.isprintable() else "?" for c in where)
    shown = shown if len(shown) <= 200 else f"{shown[:120]}…{shown[-60:]}"
    return bad_request(f"`{shown}` {what}", param=shown)
