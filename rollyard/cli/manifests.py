"""Reads manifests from files, folders or standard input; paths in them are relative to their file."""

from __future__ import annotations

import sys
from pathlib import Path

from rollyard.errors import BadRequest
from rollyard.kinds.base import KindObject
from rollyard.kinds.yaml import load_manifests

ENDINGS = {".yaml", ".yml", ".json"}


def read_manifests(names: tuple[str, ...], namespace: str) -> list[KindObject]:
    """Every object, in order, in `namespace` where it names none.

    Raises Invalid with file:line:column of each mistake, BadRequest for a missing file.
    """
    found: list[KindObject] = []
    for name in names:
        if name == "-":
            found += load_manifests(sys.stdin.read(), "<stdin>", str(Path.cwd()))
            continue
        path = Path(name)
        if not path.exists():
            raise BadRequest(f"the path {name!r} does not exist")
        files = sorted(f for f in path.iterdir() if f.suffix in ENDINGS) if path.is_dir() else [path]
        if not files:
            raise BadRequest(f"{name} holds no file that ends in {', '.join(sorted(ENDINGS))}")
        for file in files:
            found += load_manifests(file.read_text(), str(file), str(file.resolve().parent))
    return [_placed(obj, namespace) for obj in found]


def _placed(obj: KindObject, namespace: str) -> KindObject:
    if "namespace" in obj.metadata.model_fields_set:
        return obj
    return obj.model_copy(update={"metadata": obj.metadata.model_copy(update={"namespace": namespace})})
