"""Reads the fields with which callers ask for a form of the answer, in the names of OpenAI, Anthropic and vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rollyard.gateway.requests.call_errors import bad_request
from rollyard.gateway.requests.schema_check import check_pattern, check_schema
from rollyard.tokens.constraint import Constraint

FORMATS = (("response_format", None), ("text", "format"), ("output_config", "format"))
"""Fields that hold a format, each with the name of the format inside the field."""
VLLM = ("json", "json_object", "regex", "choice", "grammar")
"""Fields of vLLM's `structured_outputs`; `guided_json` and so on are their older names."""
MAX_GRAMMAR, MAX_CHOICES = 1 << 16, 1000


def read_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """Return the form that a call asks for; None if the call asks for none. Raises GatewayError."""
    found = [*_formats(body), *_vllm_fields(body)]
    if len(found) > 1:
        names = " and ".join(f"`{name}`" for name, _ in found)
        raise bad_request(f"{names} are two forms of the same answer; keep one of them", param=found[1][0])
    return found[0][1] if found else None


def _formats(body: Mapping[str, Any]) -> Iterator[tuple[str, Constraint]]:
    for field, inside in FORMATS:
        where, given = field, body.get(field)
        if inside is not None:
            where, given = f"{field}.{inside}", given.get(inside) if isinstance(given, dict) else None
        if given is not None and (read := _format(given, where)) is not None:
            yield where, read


def _format(given: Any, where: str) -> Constraint | None:
    match given:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Constraint("json_object", None)
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            where = f"{where}.json_schema"
        case {"type": "json_schema", "schema": schema}:
            pass
        case {"type": "json_schema"}:
            raise bad_request(f"`{where}` of type json_schema must have a `schema`", param=where)
        case _:
            raise bad_request(f"`{where}` must be an object of type text, json_object or json_schema", param=where)
    check_schema(schema, f"{where}.schema")
    return Constraint("json_schema", schema)


def _vllm_fields(body: Mapping[str, Any]) -> Iterator[tuple[str, Constraint]]:
    given = {f"guided_{name}": (name, body.get(f"guided_{name}")) for name in VLLM}
    structured = body.get("structured_outputs")
    if structured is not None:
        if not isinstance(structured, dict):
            raise bad_request("`structured_outputs` must be an object", param="structured_outputs")
        for name, value in structured.items():
            if name not in VLLM and value not in (None, False):
                raise bad_request(
                    f"this gateway cannot apply `structured_outputs.{name[:64]}`; use one of {', '.join(VLLM)}",
                    param="structured_outputs",
                )
        given |= {f"structured_outputs.{name}": (name, structured.get(name)) for name in VLLM}
    for where, (name, value) in given.items():
        if value is not None and value is not False:
            yield where, _vllm_constraint(name, value, where)


def _vllm_constraint(name: str, value: Any, where: str) -> Constraint:
    match name:
        case "json":
            schema = _parsed(value, where) if isinstance(value, str) else value
            check_schema(schema, where)
            return Constraint("json_schema", schema)
        case "json_object":
            return Constraint("json_object", None)
        case "regex":
            check_pattern(value, where)
            return Constraint("regex", value)
        case "choice":
            if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
                raise bad_request(f"`{where}` must be a list of 1 to {MAX_CHOICES} texts", param=where)
            if not all(isinstance(one, str) and one for one in value) or sum(map(len, value)) > MAX_GRAMMAR:
                raise bad_request(
                    f"`{where}` must have texts of together at most {MAX_GRAMMAR} characters", param=where
                )
            return Constraint("choice", value)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_GRAMMAR:
        raise bad_request(f"`{where}` must be a grammar of at most {MAX_GRAMMAR} characters", param=where)
    return Constraint("grammar", value)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"`{where}` is not valid JSON: {error}", param=where) from None
