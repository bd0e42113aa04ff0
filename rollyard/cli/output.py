"""Objects as tables, YAML, JSON, names, or what a jsonpath picks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import yaml

from rollyard.kinds.base import KindObject
from rollyard.kinds.columns import columns

GAP = "   "


def show(
    kind: type[KindObject], objects: Sequence[KindObject], form: str, *, all_namespaces: bool = False, one: bool = False
) -> None:
    """Print them. Raises UsageError for a form there is not."""
    match form:
        case "" | "wide":
            click.echo("\n".join(table(kind, objects, wide=form == "wide", namespaces=all_namespaces)))
        case "name":
            for obj in objects:
                click.echo(f"{kind.SINGULAR}/{obj.metadata.name}")
        case "yaml" | "json":
            data: Any = (
                objects[0].dump() if one else {"apiVersion": "v1", "kind": "List", "items": [o.dump() for o in objects]}
            )
            click.echo(json.dumps(data, indent=2) if form == "json" else yaml.safe_dump(data, sort_keys=False).rstrip())
        case _ if form.startswith("jsonpath="):
            data = objects[0].dump() if one else {"items": [o.dump() for o in objects]}
            click.echo(jsonpath(data, form.removeprefix("jsonpath=")), nl=False)
        case _:
            raise click.UsageError(f"-o {form}: use wide, yaml, json, name or jsonpath={{.status.…}}")


def table(
    kind: type[KindObject], objects: Sequence[KindObject], *, wide: bool, namespaces: bool, header: bool = True
) -> list[str]:
    shown, now = [c for c in columns(kind) if wide or not c.wide], datetime.now(UTC)
    rows = [[c.name for c in shown]] if header else []
    rows += [[c.cell(obj, now) for c in shown] for obj in objects]
    if namespaces:
        left = (["NAMESPACE"] if header else []) + [o.metadata.namespace for o in objects]
        rows = [[space, *row] for space, row in zip(left, rows, strict=True)]
    return align(rows)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def jsonpath(data: Any, template: str) -> str:
    """kubectl's `{.a.b[0].c}` and `{.items[*].metadata.name}`; text outside braces stands as it is."""

    def pick(match: re.Match[str]) -> str:
        found = [data]
        for name, index in re.findall(r"\.([\w-]+)|\[(\*|\d+)\]", match[1]):
            if name:
                found = [f[name] for f in found if isinstance(f, dict) and name in f]
            elif index == "*":
                found = [item for f in found if isinstance(f, list) for item in f]
            else:
                found = [f[int(index)] for f in found if isinstance(f, list) and int(index) < len(f)]
        return " ".join(f if isinstance(f, str) else json.dumps(f) for f in found)

    return re.sub(r"\{([^}]*)\}", pick, template)
