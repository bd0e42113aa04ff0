"""Objects as tables, YAML, JSON, names, or values selected by a jsonpath."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import yaml

from rollyard.cli.jsonpath import jsonpath
from rollyard.cli.printable import printable_line
from rollyard.kinds.base import KindObject
from rollyard.kinds.schema.columns import columns

GAP = "   "


def show(kind: type[KindObject], objects: Sequence[KindObject], form: str, *, one: bool = False) -> None:
    """Print objects in a form other than a table.

    Raises UsageError for an unknown form, and BadRequest for an unsupported jsonpath.
    """
    match form:
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
    kind: type[KindObject], objects: Sequence[KindObject], *, wide: bool, namespaces: bool, prefix: str = ""
) -> list[str]:
    """Return a table's lines. `prefix` precedes each name, such as `rolloutpool/` in a list of several kinds."""
    return Table(kind, wide=wide, namespaces=namespaces, prefix=prefix).lines(objects)


class Table:
    """A table that may grow: later rows are aligned with earlier ones."""

    def __init__(self, kind: type[KindObject], *, wide: bool, namespaces: bool, prefix: str = "") -> None:
        self._columns = [c for c in columns(kind) if wide or not c.wide]
        self._namespaces, self._prefix = namespaces, prefix
        self._widths: list[int] = []

    def lines(self, objects: Sequence[KindObject]) -> list[str]:
        """Return lines for the next objects. The first call also returns the header."""
        now, rows = datetime.now(UTC), list[list[str]]()
        if not self._widths:
            rows.append([*(["NAMESPACE"] if self._namespaces else []), *(c.name for c in self._columns)])
        for obj in objects:
            name, *cells = [c.cell(obj, now) for c in self._columns]
            space = [obj.metadata.namespace] if self._namespaces else []
            rows.append([*space, self._prefix + name, *cells])
        self._widths = widths(rows, self._widths)
        return align(rows, self._widths)


def widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[int]:
    """Return the width of each column in characters. No column is narrower than its width in `least`."""
    found = [max(len(printable_line(row[i])) for row in rows) for i in range(len(rows[0]))] if rows else list(least)
    return [max(pair) for pair in zip(found, least, strict=True)] if least else found


def align(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[str]:
    """Return the rows as lines with aligned columns. Control characters are shown, because an agent may have written them."""
    rows = [[printable_line(cell) for cell in row] for row in rows]
    found = widths(rows, least)
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, found, strict=True)).rstrip() for row in rows]
