"""Manifests from files, folders or standard input.

A relative path in a manifest is relative to the manifest's file. A manifest from standard input has no file, so its
paths must be absolute, as in every request to the API.
"""

from __future__ import annotations

from pathlib import Path

import click

from rollyard.cli.text_files import read_text
from rollyard.core.errors import BadRequest
from rollyard.kinds.base import KindObject, ObjectKey, evolve
from rollyard.kinds.schema.yaml import load_manifests

ENDINGS = {".yaml", ".yml", ".json"}


def read_manifests(names: tuple[str, ...], namespace: str) -> list[KindObject]:
    """Read all objects, in order. An object without a namespace gets `namespace`.

    Files of a folder that declare no object are left out. Raises Invalid with file:line:column of the mistakes in the
    first wrong file. Raises BadRequest for a file that is missing, not text, or without objects, for a folder without
    manifests, for an object in another namespace than the option --namespace names, and for an object that is given twice.
    """
    found: list[tuple[str, KindObject]] = []
    for name in names:
        if name == "-":
            found += _required(name, "<stdin>", None)
            continue
        path = Path(name)
        if not path.exists():
            raise BadRequest(f"the path {name!r} does not exist")
        if not path.is_dir():
            found += _required(name, name, str(path.resolve().parent))
            continue
        files = sorted(f for f in path.iterdir() if f.suffix in ENDINGS)
        if not files:
            raise BadRequest(f"{name} contains no file that ends in {', '.join(sorted(ENDINGS))}")
        inside = [each for file in files for each in _objects(str(file), str(file), str(file.resolve().parent))]
        if not inside:
            raise BadRequest(f"no file in {name} declares an object")
        found += inside
    return _unique([(source, _in_namespace(obj, namespace)) for source, obj in found])


def _unique(found: list[tuple[str, KindObject]]) -> list[KindObject]:
    sources: dict[ObjectKey, str] = {}
    for source, obj in found:
        if obj.key in sources:
            first = sources[obj.key]
            where = f"in {first} and in {source}" if first != source else f"twice in {source}"
            raise BadRequest(
                f"{obj.SINGULAR}/{obj.metadata.name} in namespace {obj.metadata.namespace} is given {where}; keep one of them"
            )
        sources[obj.key] = source
    return [obj for _, obj in found]


def _required_namespace() -> str | None:
    """Return the command's option --namespace; None if it was not given."""
    context = click.get_current_context(silent=True)
    return context.params.get("namespace") if context is not None else None


def _required(name: str, source: str, folder: str | None) -> list[tuple[str, KindObject]]:
    objects = _objects(name, source, folder)
    if not objects:
        raise BadRequest(f"{source} declares no object; `rollyard explain rolloutpool` shows the fields of one")
    return objects


def _objects(name: str, source: str, folder: str | None) -> list[tuple[str, KindObject]]:
    """Return the objects, each with its source."""
    return [(source, obj) for obj in load_manifests(read_text(name), source, folder)]


def _in_namespace(obj: KindObject, namespace: str) -> KindObject:
    own = obj.metadata.namespace
    if "namespace" in obj.metadata.model_fields_set:
        if (required := _required_namespace()) not in (None, own):
            raise BadRequest(
                f"the namespace of {obj.SINGULAR}/{obj.metadata.name} ({own}) does not match the namespace {required!r}: "
                f"leave out -n, write -n {own}, or change metadata.namespace"
            )
        return obj
    return evolve(obj, metadata=evolve(obj.metadata, namespace=namespace))
