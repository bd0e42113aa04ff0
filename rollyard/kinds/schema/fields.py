"""Fields of a kind by their names in manifests, for validation messages and `explain`."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Path = tuple[str | int, ...]
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class FieldShape:
    """One field. `type_name`: type in manifests, such as `integer`, `[]string`, `map[string]string` or `Workers`."""

    name: str
    type_name: str
    description: str
    required: bool
    default: Any
    """Default as JSON; None if there is none."""
    choices: tuple[str, ...]
    model: type[BaseModel] | None
    """Model of the value, or of the values in a list or mapping."""


def fields_of(model: type[BaseModel]) -> dict[str, FieldShape]:
    """Fields of a model, by their names on the wire."""
    return {shape.name: shape for shape in (_shape(model, name, field) for name, field in model.model_fields.items())}


def model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Model at `path`; None if there is no model at this path. The path may contain list indexes and mapping keys."""
    annotation: Any = model
    for part in path:
        annotation = _descend(_unwrapped(annotation), part)
    bare = _unwrapped(annotation)
    return bare if _is_model(bare) else None


def find_field(model: type[BaseModel], path: Sequence[str]) -> FieldShape | None:
    """Field at a path such as `spec.engine.external.endpoints.url`; None if there is none. The path has no indexes or keys."""
    shape: FieldShape | None = None
    holder: type[BaseModel] | None = model
    for name in path:
        shape = fields_of(holder).get(name) if holder else None
        if shape is None:
            return None
        holder = shape.model
    return shape


def walk(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldShape]]:
    """Every field below a model, with its path. A field comes before the fields inside it."""
    for name, shape in fields_of(model).items():
        yield (*above, name), shape
        if shape.model is not None:
            yield from walk(shape.model, (*above, name))


def dotted(path: Sequence[str | int]) -> str:
    """Path in Kubernetes' notation, such as `spec.engine.external.endpoints[0].url`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings below the fields of a model and of its bases, by the fields' names in Python."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        found |= _docstrings_in(base.__module__).get(base.__name__, {}) if issubclass(base, BaseModel) else {}
    return found


@functools.cache
def _docstrings_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings below fields, by class and field; empty if the module's source is missing."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {c.name: dict(_below_fields(c)) for c in tree.body if isinstance(c, ast.ClassDef)}


def _below_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, inspect.cleandoc(docstring)


def _shape(model: type[BaseModel], name: str, field: FieldInfo) -> FieldShape:
    bare = _unwrapped(field.annotation)
    leaf = _leaf_type(bare)
    text = field.description or docstrings(model).get(name) or (leaf.__doc__ if _is_model(leaf) else "")
    default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        default = default.model_dump(mode="json", by_alias=True, exclude_none=True)
    return FieldShape(
        name=field.alias or name,
        type_name=_type_name(bare),
        description=(text or "").strip(),
        required=field.is_required(),
        default=default,
        choices=tuple(str(c) for c in get_args(leaf)) if get_origin(leaf) is Literal else (),
        model=leaf if _is_model(leaf) else None,
    )


def _unwrapped(annotation: Any) -> Any:
    """The type without `Annotated[...]` and `| None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _unwrapped(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        rest = [a for a in get_args(annotation) if a is not type(None)]
        return _unwrapped(rest[0]) if len(rest) == 1 else annotation
    return annotation


def _leaf_type(bare: Any) -> Any:
    while get_origin(bare) in (list, dict):
        bare = _unwrapped(get_args(bare)[-1])
    return bare


def _descend(bare: Any, part: str | int) -> Any:
    if _is_model(bare):
        return next((f.annotation for n, f in bare.model_fields.items() if (f.alias or n) == part), None)
    return get_args(bare)[-1] if get_origin(bare) in (list, dict) else None


def _type_name(bare: Any) -> str:
    origin = get_origin(bare)
    if origin is list:
        return f"[]{_type_name(_unwrapped(get_args(bare)[0]))}"
    if origin is dict:
        return f"map[string]{_type_name(_unwrapped(get_args(bare)[1]))}"
    if origin is Literal:
        return "string"
    return str(_WORDS.get(bare) or getattr(bare, "__name__", bare))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
