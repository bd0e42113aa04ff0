"""The server-side `Table` that kubectl prints, with the columns of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from rollyard.kinds.base import KindObject
from rollyard.kinds.schema.columns import columns


def is_table_requested(request: web.Request) -> bool:
    return "as=Table" in request.headers.get("Accept", "")


def table_of(kind: type[KindObject], items: Sequence[KindObject], version: str) -> dict[str, Any]:
    """Build a meta.k8s.io/v1 Table: one row for each object, with the object's metadata."""
    shown = columns(kind)
    now = datetime.now(UTC)
    definitions = [
        {"name": c.name.title(), "type": "string", "format": "", "description": c.description, "priority": int(c.wide)}
        for c in shown
    ]
    rows = [
        {
            "cells": [c.cell(obj, now) for c in shown],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj.metadata.model_dump(mode="json", by_alias=True, exclude_none=True),
            },
        }
        for obj in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions,
        "rows": rows,
    }
