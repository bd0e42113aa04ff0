"""The committed CRDs are what the models say, and the samples are what the loader takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollyard.crds_yaml.generate import FOLDER, KINDS, crd, text
from rollyard.kinds.base import KindObject
from rollyard.kinds.schema.yaml import load_manifests


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_file_is_the_generated_one(kind: type[KindObject]) -> None:
    assert (FOLDER / f"{kind.PLURAL}.yaml").read_text() == text(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_structural_and_every_spec_field_is_explained(kind: type[KindObject]) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, part in walk(schema, ""):
        assert "type" in part, path
        assert not {"$ref", "anyOf", "oneOf", "const"} & part.keys(), path
        if path.startswith(".spec.") and not path.endswith("[]") and kind.USER_WRITTEN:
            assert part.get("description"), path


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml"])
def test_samples_are_accepted(name: str) -> None:
    loaded = load_manifests((FOLDER / "samples" / name).read_text(), name)
    assert [o.key.kind for o in loaded] == ["InferencePool", "RolloutPool"]


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict) and schema[key].get("properties"):
            yield from walk(schema[key], f"{path}[]")
