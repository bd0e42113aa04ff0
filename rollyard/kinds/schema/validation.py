"""Strict parsing of objects. An error names the path of the field and the remedy.

The YAML loader and the API both use this module, so both report a mistake with the same text.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pydantic
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import API_VERSION, GROUP, KindObject, ObjectMeta
from rollyard.kinds.registry import KINDS
from rollyard.kinds.schema.fields import Path, dotted, fields_of, find_field, model_at, walk
from rollyard.kinds.schema.object_names import (
    annotation_problems,
    finalizer_problems,
    label_problems,
    name_problems,
)

FOREIGN_METADATA = frozenset({"managedFields", "generateName", "selfLink", "deletionGracePeriodSeconds"})
"""Metadata fields that kubectl and other clients of Kubernetes send. These fields are dropped without an error."""
MAX_REPORTED = 20
MAX_DROPS = 10
"""Rounds in which unknown fields are removed. Each round removes those that one parse reports."""
MAX_LISTED = 1000
"""If there are more mistakes than this, only their number is reported. It would take seconds to write all the texts."""
_BOUNDED: tuple[Path, ...] = (("metadata", "name"), ("metadata", "namespace"))
"""Fields whose strings only `_out_of_bounds` checks. pydantic's own errors about these strings are dropped, so each
mistake is reported once."""
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "datetime_type": "a time such as 2030-01-31T12:00:00Z",
    "datetime_from_date_parsing": "a time such as 2030-01-31T12:00:00Z",
}
_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le"),
           "greater_than": ("greater than", "gt"), "less_than": ("less than", "lt")}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One mistake. `at_key`: True if the key is wrong, and not the value."""

    path: Path
    message: str
    reason: str = "FieldValueInvalid"
    at_key: bool = False

    def cause(self) -> Cause:
        return Cause(dotted(self.path), self.message, self.reason)

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


def validate_object(data: Any) -> KindObject:
    """Parse a JSON object into its kind.

    Raises Invalid with one cause for each mistake that `parse` lists. The `field` of a cause is a dotted camelCase
    path.
    """
    obj, problems = parse(data)
    if obj is None:
        listed = "; ".join(str(p) for p in problems)
        raise Invalid(f"{_title(data)} is invalid: {listed}", causes=[p.cause() for p in problems])
    return obj


def parse(data: Any) -> tuple[KindObject | None, list[Problem]]:
    """Parse an object. Return the object and an empty list, or None and the mistakes. If there are
    many mistakes, only the first ones are listed."""
    if not isinstance(data, dict):
        return None, [
            Problem((), f"must be a mapping with apiVersion, kind, metadata and spec, not {_given_text(data)}")
        ]
    kind, problems = _kind(data)
    if kind is None:
        return None, problems
    problems += _metadata(data.get("metadata"))
    obj, found = _read(kind, data)
    problems += found
    unknown = [p for p in problems if p.at_key]
    if unknown:  # pydantic compares fields with each other only if all are known: parse again with the probable names
        seen = {p.path for p in problems}
        problems += [p for p in _read(kind, _repair(kind, data, unknown))[1] if p.path not in seen]
    return (None if problems else obj), problems


def without_unknown_fields(data: Any) -> tuple[Any, list[str]]:
    """Return a copy of an object without its unknown fields, and the dotted paths of these fields.

    With very many unknown fields, only some of them are removed, so a later `parse` reports the others.
    """
    kept, dropped = copy.deepcopy(data), list[str]()
    for _ in range(MAX_DROPS):
        before = len(dropped)
        for problem in parse(kept)[1]:
            holder = _holder(kept, problem.path) if problem.at_key else None
            if isinstance(holder, dict) and str(problem.path[-1]) in holder:
                del holder[str(problem.path[-1])]
                dropped.append(dotted(problem.path))
        if len(dropped) == before:
            break
    return kept, dropped


def _holder(data: Any, path: Path) -> Any:
    """Value that contains the last part of `path`; None if there is none."""
    for part in path[:-1]:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return None
    return data


def _title(data: Any) -> str:
    if not isinstance(data, dict) or data.get("kind") not in KINDS:
        return "the object"
    metadata = data.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return f'{data["kind"]}.{GROUP} "{name}"'


def _kind(data: dict[str, Any]) -> tuple[type[KindObject] | None, list[Problem]]:
    problems = []
    if "apiVersion" not in data:
        problems.append(Problem(("apiVersion",), f"is missing; write {API_VERSION}", "FieldValueRequired"))
    elif data["apiVersion"] != API_VERSION:
        problems.append(
            Problem(
                ("apiVersion",),
                f"must be {API_VERSION}, not {_given_text(data['apiVersion'])}",
                "FieldValueNotSupported",
            )
        )
    word = data.get("kind")
    kind = KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        choices = [name for name, k in KINDS.items() if k.USER_WRITTEN]
        start = (
            "is missing; write"
            if word is None
            else f"there is no {_given_text(word)}{did_you_mean(word, choices)}; write"
        )
        reason = "FieldValueRequired" if word is None else "FieldValueNotSupported"
        problems.append(Problem(("kind",), f"{start} one of {', '.join(choices)}", reason))
    return (None if problems else kind), problems


def _metadata(metadata: Any) -> list[Problem]:
    """Mistakes in metadata. ObjectMeta ignores unknown fields; this function reports those not in FOREIGN_METADATA."""
    if not isinstance(metadata, dict):
        return []
    known = [*fields_of(ObjectMeta), *FOREIGN_METADATA]
    written = ("name", "namespace", "labels", "annotations")
    unknown = (_unknown(("metadata", key), written, None) for key in metadata if key not in known)
    return list(islice(chain(unknown, _out_of_bounds(metadata)), MAX_REPORTED))


def _out_of_bounds(metadata: dict[str, Any]) -> Iterator[Problem]:
    """Mistakes in metadata by Kubernetes' rules, with the paths that Kubernetes reports. Wrong types are not checked here."""
    for field in ("name", "namespace"):
        if isinstance(text := metadata.get(field), str):
            yield from (Problem(("metadata", field), f"{_given_text(text)}: {words}") for words in name_problems(text))
    for field, problems in (("labels", label_problems), ("annotations", annotation_problems)):
        if isinstance(texts := metadata.get(field), dict):
            yield from (Problem(("metadata", field), words) for words in problems(texts))
    if isinstance(names := metadata.get("finalizers"), list):
        yield from (Problem(("metadata", "finalizers"), words) for words in finalizer_problems(names))
    owners = metadata.get("ownerReferences")
    if isinstance(owners, list) and sum(isinstance(o, dict) and o.get("controller") is True for o in owners) > 1:
        yield Problem(("metadata", "ownerReferences"), "only one owner can have `controller: true`")


def _read(kind: type[KindObject], data: dict[str, Any]) -> tuple[KindObject | None, list[Problem]]:
    try:
        # In strict mode pydantic reads a time from a string only if the input is JSON, not Python objects.
        return kind.model_validate_json(json.dumps(data), strict=True, by_alias=True, by_name=False), []
    except pydantic.ValidationError as error:
        return None, [p for p in problems_of(kind, error) if not (p.path in _BOUNDED and p.reason == Problem.reason)]


def problems_of(model: type[BaseModel], error: pydantic.ValidationError) -> list[Problem]:
    """Mistakes that pydantic found in an object of the class `model`, up to a limit."""
    count = error.error_count()
    if count > MAX_LISTED:
        return [Problem((), f"it has {count} mistakes, which are too many to list")]
    errors = error.errors(include_url=False)
    problems = [_problem(model, e) for e in errors[:MAX_REPORTED]]
    if count > MAX_REPORTED:
        problems.append(Problem((), f"and {count - MAX_REPORTED} more mistakes"))
    return problems


def _repair(kind: type[KindObject], data: dict[str, Any], unknown: Sequence[Problem]) -> dict[str, Any]:
    """Copy of the data without unknown fields. An unknown field is renamed if its name is close to the name of a known
    field that the data lacks; otherwise the field is removed."""
    repaired = copy.deepcopy(data)
    for problem in unknown:
        holder: Any = repaired
        for part in problem.path[:-1]:
            holder = holder[part]
        name = str(problem.path[-1])
        value = holder.pop(name)
        meant = _closest_word(name, _names(model_at(kind, problem.path[:-1])))
        if meant is not None:
            holder.setdefault(meant, value)
    return repaired


def _problem(kind: type[BaseModel], error: ErrorDetails) -> Problem:
    path: Path = tuple(error["loc"])
    given, about = error.get("input"), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return _unknown(path, _names(model_at(kind, path[:-1])), kind)
        case "missing":
            return Problem(path, _missing(kind, path), "FieldValueRequired")
        case "literal_error":
            shape = find_field(kind, [p for p in path if isinstance(p, str)])
            choices = shape.choices if shape else ()
            meant = did_you_mean(given, choices)
            if shape is not None and len(choices) == 1:
                text = f" ({' '.join(shape.description.split())})" if shape.description else ""
                return Problem(path, f"must be {choices[0]}, not {_given_text(given)}{text}", "FieldValueNotSupported")
            return Problem(
                path, f"must be one of {', '.join(choices)}, not {_given_text(given)}{meant}", "FieldValueNotSupported"
            )
        case "string_pattern_mismatch" | "string_too_long" | "string_too_short" | "too_short":
            return Problem(path, f"{error['msg']}, not {_given_text(given)}{_hint(kind, path)}")
        case "value_error":
            return Problem(path, str(about["error"]))
        case word if word in _BOUNDS:
            phrase, key = _BOUNDS[word]
            return Problem(path, f"must be {phrase} {about[key]}, not {_given_text(given)}")
        case word if word in _EXPECTED:
            shape = find_field(kind, [p for p in path if isinstance(p, str)])
            required = shape is not None and shape.required
            return Problem(path, _wrong_type(_EXPECTED[word], given, required), "FieldValueTypeInvalid")
        case _:
            return Problem(path, f"{error['msg']}, not {_given_text(given)}")


def _unknown(path: Path, siblings: Sequence[str], kind: type[BaseModel] | None) -> Problem:
    name = str(path[-1])
    meant = did_you_mean(name, siblings)
    if not meant and kind is not None:
        found = [where for where, _ in walk(kind) if where[-1] == name]
        elsewhere = [dotted(where) for where in found if where[0] == "spec" or not issubclass(kind, KindObject)]
        meant = f"; it belongs to `{elsewhere[0]}`" if elsewhere else ""
    return Problem(path, f"unknown field{meant}; fields here: {', '.join(siblings)}", at_key=True)


def _missing(kind: type[BaseModel], path: Path) -> str:
    shape = find_field(kind, [p for p in path if isinstance(p, str)])
    if shape is None:
        return "is missing"
    fields = f" with {', '.join(fields_of(shape.model))}" if shape.model else ""
    return f"is missing; write {_article(shape.type_name)}{fields}{_hint(kind, path)}"


def _hint(kind: type[BaseModel], path: Path) -> str:
    shape = find_field(kind, [p for p in path if isinstance(p, str)])
    return f" ({shape.description.splitlines()[0]})" if shape and shape.description else ""


def _wrong_type(expected: str, given: Any, required: bool) -> str:
    if given is None:
        return f"is empty; write {expected}{'' if required else ', or leave the field out'}"
    if expected == "a mapping" and isinstance(given, str) and (found := re.fullmatch(r"([A-Za-z]\w*):(\S+)", given)):
        return f'"{given}" has no space after the colon; write "{found[1]}: {found[2]}"'
    if expected == "a string" and isinstance(given, bool | int | float):
        return f'must be a string; write it in quotes: "{json.dumps(given)}"'
    if expected in ("a whole number", "a number") and isinstance(given, str) and given.lstrip("+-").isdecimal():
        return f"must be {expected}; write {int(given)} without quotes and leading zeros"
    if expected == "true or false" and isinstance(given, str):
        word = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
        plain = word.get(given.lower())
        return f"must be true or false; write {plain}" if plain else f"must be true or false, not {_given_text(given)}"
    if expected == "a list" and isinstance(given, str | int | float):
        return f"must be a list; write [{given}]"
    return f"must be {expected}, not {_given_text(given)}"


def _given_text(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str() if len(value) > 60:
            return f'"{value[:57]}..."'
        case str():
            return f'"{value}"'
        case _:
            return json.dumps(value)


def _article(type_word: str) -> str:
    if type_word.startswith("[]"):
        return "a list"
    if type_word.startswith("map["):
        return "a mapping"
    return {"string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(
        type_word, "a mapping"
    )


def _names(model: type[BaseModel] | None) -> list[str]:
    return list(fields_of(model)) if model else []


def did_you_mean(word: Any, choices: Sequence[str]) -> str:
    """Suggestion of the closest choice, as half a sentence; empty if no choice is close."""
    closest = _closest_word(str(word), choices)
    return f"; did you mean `{closest}`?" if closest else ""


def _closest_word(word: str, choices: Sequence[str]) -> str | None:
    def plain(text: str) -> str:
        return text.replace("_", "").replace("-", "").lower()

    by_plain = {plain(c): c for c in choices}
    found = difflib.get_close_matches(plain(word), by_plain, n=1, cutoff=0.7)
    return by_plain[found[0]] if found else None
