"""Check of JSON values against JSON schemas: a judge's answers, and the arguments of a handler's own tools.

The keywords are those that models get as the form of a call or of an answer. A schema with another keyword is refused, so
nothing that a schema asks for goes unchecked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

Schema = Mapping[str, Any]
MAX_DEPTH = 32
ROOT = "the value"
"""Name of the whole value in sentences."""
NOTES = {
    *(
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
    ),
    *("readOnly", "writeOnly", "format", "discriminator"),
}
"""Keywords that ask for nothing."""
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}
BOUNDS: dict[str, tuple[type | tuple[type, ...], str, Callable[[Any, Any], bool]]] = {
    "minimum": ((int, float), "must be at least {}", lambda value, bound: value >= bound),
    "maximum": ((int, float), "must be at most {}", lambda value, bound: value <= bound),
    "exclusiveMinimum": ((int, float), "must be greater than {}", lambda value, bound: value > bound),
    "exclusiveMaximum": ((int, float), "must be less than {}", lambda value, bound: value < bound),
    "multipleOf": ((int, float), "must be a multiple of {}", lambda value, bound: value % bound == 0),
    "minLength": (str, "must have at least {} characters", lambda value, bound: len(value) >= bound),
    "maxLength": (str, "must have at most {} characters", lambda value, bound: len(value) <= bound),
    "pattern": (str, "must match {!r}", lambda value, bound: re.search(bound, value) is not None),
    "minItems": (list, "must have at least {} items", lambda value, bound: len(value) >= bound),
    "maxItems": (list, "must have at most {} items", lambda value, bound: len(value) <= bound),
}
"""Keyword -> type to which it applies, sentence, check."""
KEYWORDS = {
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"),
    *("anyOf", "oneOf", "allOf", "$ref"),
    *BOUNDS,
}


def schema_of(given: Schema | type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a pydantic model, or a copy of a JSON schema. Raises ValueError for a schema that cannot be
    checked."""
    if isinstance(given, type):
        return given.model_json_schema()
    made: dict[str, Any] = json.loads(json.dumps(dict(given)))
    for node in _nodes(made, 1):
        if unknown := sorted(node.keys() - KEYWORDS - NOTES):
            raise ValueError(f"the schema has the keyword {unknown[0]!r}, which is not checked; use a pydantic model")
        if not set(_types(node)) <= TYPES.keys():
            raise ValueError(f"`type` must be one of {', '.join(TYPES)}, or a list of them")
        if "$ref" in node:
            _resolved(node["$ref"], made)
        if "pattern" in node:
            re.compile(node["pattern"])
    return made


def read_json(text: str, given: Schema | type[BaseModel]) -> Any:
    """Return the JSON value of a text, with a pydantic model an object of it. Raises ValueError with the first fault."""
    value = from_json(text, allow_inf_nan=False)
    if wrong := fault(value, given):
        raise ValueError(wrong)
    return given.model_validate(value) if isinstance(given, type) else value


def fault(value: Any, given: Schema | type[BaseModel]) -> str | None:
    """Return the first fault of a JSON value, as a sentence that names its place; None if there is none."""
    if not isinstance(given, type):
        return next(_faults(value, given, given, ROOT, 1), None)
    try:
        given.model_validate(value)
    except ValidationError as error:
        return first_fault(error)
    return None


def first_fault(error: ValidationError) -> str:
    """Return the first fault that a pydantic model has found, as a sentence that names its place."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or ROOT}: {first['msg']}"


def _faults(value: Any, schema: Any, root: Schema, name: str, depth: int) -> Iterator[str]:
    if schema is True:
        return
    if schema is False or depth > MAX_DEPTH:
        yield f"{name} must be left out" if schema is False else f"{name} is nested too deep"
        return
    if "$ref" in schema:
        yield from _faults(value, _resolved(schema["$ref"], root), root, name, depth + 1)
    if (types := _types(schema)) and not any(TYPES[type](value) for type in types):
        yield f"{name} must be {_article(types)}"
        return
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{name} must be one of {', '.join(map(json.dumps, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{name} must be {json.dumps(schema['const'])}"
    for keyword, (types_of_bound, words, holds) in BOUNDS.items():
        applies = isinstance(value, types_of_bound) and not isinstance(value, bool)
        if keyword in schema and applies and not holds(value, schema[keyword]):
            yield f"{name} {words.format(schema[keyword])}"
    if isinstance(value, dict):
        yield from _faults_of_object(value, schema, root, name, depth)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for i, item in enumerate(value):
            own = first[i] if i < len(first) else schema.get("items", True)
            yield from _faults(item, own, root, f"{name}[{i}]", depth + 1)
    for one in schema.get("allOf", []):
        yield from _faults(value, one, root, name, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        found = [next(_faults(value, one, root, name, depth + 1), None) for one in schema.get(keyword, [])]
        fitting = found.count(None)
        if found and not fitting:
            yield f"{name} fits none of its forms: {'; '.join(filter(None, found))}"
        if keyword == "oneOf" and fitting > 1:
            yield f"{name} fits {fitting} of its forms, and must fit one"


def _faults_of_object(value: dict[str, Any], schema: Schema, root: Schema, name: str, depth: int) -> Iterator[str]:
    known = schema.get("properties", {})
    for lacking in (one for one in schema.get("required", []) if one not in value):
        yield f"{name} needs {lacking!r}"
    for key, one in value.items():
        own = known.get(key, schema.get("additionalProperties", True))
        if own is False:
            yield f"{name} has no {key!r}; it takes {', '.join(known) or 'nothing'}"
        else:
            yield from _faults(one, own, root, f"{name}.{key}" if name != ROOT else key, depth + 1)


def _nodes(schema: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas in it. Raises ValueError for one that is none, or too deep."""
    if isinstance(schema, bool) and depth > 1:
        return
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        raise ValueError("a schema must be a JSON object" if depth <= MAX_DEPTH else "the schema is nested too deep")
    yield schema
    for name in ("properties", "$defs", "definitions"):
        for inner in schema.get(name, {}).values():
            yield from _nodes(inner, depth + 1)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in schema.get(name, []):
            yield from _nodes(inner, depth + 1)
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _nodes(schema[name], depth + 1)


def _resolved(reference: Any, root: Schema) -> Any:
    """Return the schema to which a reference points. Raises ValueError."""
    node: Any = root
    for part in str(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or name not in node:
            raise ValueError(f"`$ref` names {reference!r}, which the schema does not have")
        node = node[name]
    if not str(reference).startswith("#"):
        raise ValueError(f"`$ref` must be a place in the same schema, such as `#/$defs/NAME`, not {reference!r}")
    return node


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _article(types: list[str]) -> str:
    return " or ".join("null" if one == "null" else f"an {one}" if one[0] in "aio" else f"a {one}" for one in types)
