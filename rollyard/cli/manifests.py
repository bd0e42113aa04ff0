"""Manifests from files, folders or standard input.

A relative path in a manifest is relative to the manifest's file. A manifest from standard input has no file, so its
paths must be absolute, as in every request to the API.
"""

from __future__ import annotations

from pathlib import Path

from rollyard.cli.text_files import read_text
from rollyard.core.errors import BadRequest
from rollyard.kinds.base import KindObject, evolve
from rollyard.kinds.schema.yaml import load_manifests

ENDINGS = {".yaml", ".yml", ".json"}


def read_manifests(names: tuple[str, ...], namespace: str) -> list[KindObject]:
    """Read all objects, in order. An object without a namespace gets `namespace`.

    Raises Invalid with file:line:column of the mistakes in the first wrong file. Raises BadRequest for a file that is
    missing, not text, or without objects, and for a folder without manifests.
    """
    found: list[KindObject] = []
    for name in names:
        if name == "-":
            found += _objects(name, "<stdin>", None)
            continue
        path = Path(name)
        if not path.exists():
            raise BadRequest(f"the path {name!r} does not exist")
        files = sorted(f for f in path.iterdir() if f.suffix in ENDINGS) if path.is_dir() else [path]
        if not files:
            raise BadRequest(f"{name} contains no file that ends in {', '.join(sorted(ENDINGS))}")
        for file in files:
            found += _objects(str(file), str(file), str(file.resolve().parent))
    return [_in_namespace(obj, namespace) for obj in found]


def _objects(name: str, source: str, folder: str | None) -> list[KindObject]:
    objects = load_manifests(read_text(name), source, folder)
    if not objects:
        raise BadRequest(f"{source} declares no object; `rollyard explain rolloutpool` shows the fields of one")
    return objects


def _in_namespace(obj: KindObject, namespace: str) -> KindObject:
    if "namespace" in obj.metadata.model_fields_set:
        return obj
    return evolve(obj, metadata=evolve(obj.metadata, namespace=namespace))
