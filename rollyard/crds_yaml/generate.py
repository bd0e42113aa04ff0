"""Generates the CRDs of pools and allocations: structural schema, printer columns, subresources.

Run it with `python -m rollyard.crds_yaml.generate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import GROUP, VERSION, KindObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.schema.fields import docstrings, walk

FOLDER = Path(__file__).parent
KINDS: tuple[type[KindObject], ...] = (InferencePool, RolloutPool, Allocation)
_KEPT = (
    "type",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "pattern",
    "format",
    "default",
)
_READY = '.status.conditions[?(@.type=="Ready")]'
_SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas.observed"}
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def object_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema in Kubernetes' structural form, with the docstrings of all fields."""
    schema = kind.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    _describe(kind, schema)
    for model in {shape.model for _, shape in walk(kind) if shape.model}:
        _describe(model, definitions[model.__name__])
    return {**structural(schema, definitions), "description": (kind.__doc__ or "").strip()}


def _describe(model: type[BaseModel], schema: dict[str, Any]) -> None:
    texts = docstrings(model)
    for name, field in model.model_fields.items():
        if name in texts and not field.description:
            schema["properties"][field.alias or name]["description"] = texts[name]


def crd(kind: type[KindObject]) -> dict[str, Any]:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1) of a kind."""
    properties = object_schema(kind)["properties"]
    parts = {name: properties[name] for name in ("spec", "status")}
    whole = {"type": "object", "description": kind.__doc__, "properties": parts, "required": ["spec"]}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "subresources": {"status": {}} | ({"scale": _SCALE} if kind.USER_WRITTEN else {}),
        "additionalPrinterColumns": [*_columns(kind), _AGE],
    }
    word = kind.model_fields["kind"].default
    names = {
        "kind": word,
        "listKind": f"{word}List",
        "plural": kind.PLURAL,
        "singular": kind.SINGULAR,
        "shortNames": list(kind.SHORT),
        "categories": ["all", "rollyard"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in Kubernetes' structural form: without references and unions.

    A union with null becomes `nullable`.
    """
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        return structural({**target, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions)
    if "anyOf" in schema:
        (inner,) = [s for s in schema["anyOf"] if s.get("type") != "null"]
        rest = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
        return {**structural({**inner, **rest}, definitions), "nullable": True}
    found = {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        found["enum"] = [schema["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in schema:
            found |= {bound.lower(): schema[f"exclusive{bound}"], f"exclusive{bound}": True}
    if "properties" in schema:
        found["properties"] = {name: structural(inner, definitions) for name, inner in schema["properties"].items()}
        found |= {"required": schema["required"]} if schema.get("required") else {}
    if "items" in schema:
        found["items"] = structural(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = structural(schema["additionalProperties"], definitions)
    return found


def _columns(kind: type[KindObject]) -> list[dict[str, str]]:
    if kind is Allocation:
        paths = {
            "Pool": ".spec.pool.name",
            "Ready": ".status.ready",
            "Job": ".status.jobId",
            "State": ".status.jobState",
        }
    else:
        counts = {"Ready": "ready", "Desired": "desired", "Up-to-date": "updated"}
        paths = {name: f".status.replicas.{word}" for name, word in counts.items()} | {"Status": f"{_READY}.reason"}
    return [{"name": n, "type": _column_type(n, kind), "jsonPath": path} for n, path in paths.items()]


def _column_type(name: str, kind: type[KindObject]) -> str:
    if name in ("Ready", "Desired", "Up-to-date"):
        return "boolean" if kind is Allocation else "integer"
    return "string"


def text(kind: type[KindObject]) -> str:
    return yaml.safe_dump(crd(kind), sort_keys=False, width=120)


def main() -> None:
    for kind in KINDS:
        (FOLDER / f"{kind.PLURAL}.yaml").write_text(text(kind))


if __name__ == "__main__":
    main()
