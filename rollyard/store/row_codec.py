"""A rollout's record as a row. Columns have the names of the fields, except `body` (the field `request`). Values that
are not scalars are stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from rollyard.kinds.rollout import RolloutError, Stage, Status, WeightsConstraint
from rollyard.store.base import BlobRef, RolloutRecord, VersionBound

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # `json.dumps` would make one for each call


def mapping_text(value: Mapping[str, Any]) -> str:
    """Return the canonical JSON of a mapping. Equal mappings have equal texts, so rows can be grouped by the text."""
    return _CANONICAL.encode(dict(value)) if value else "{}"


def mapping_of(text: str) -> dict[str, Any]:
    return json.loads(text) if text != "{}" else {}


def blob_text(ref: BlobRef) -> str:
    return json.dumps([ref.pack, ref.offset, ref.length, ref.sha256])


def blob_of(text: str) -> BlobRef:
    return BlobRef(*json.loads(text))


def _names_of(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


_BLOB: Codec = (blob_text, blob_of)
_CODECS: dict[str, Codec] = {
    "status": (attrgetter("value"), Status),
    "stage": (attrgetter("value"), Stage),
    "endpoints": (mapping_text, mapping_of),
    "result": _BLOB,
    "artifact": _BLOB,
    "error": (RolloutError.model_dump_json, RolloutError.model_validate_json),
    "summary": (mapping_text, mapping_of),
    "metadata": (mapping_text, mapping_of),
    "sampled_by": (",".join, _names_of),
    "weights": (WeightsConstraint.model_dump_json, WeightsConstraint.model_validate_json),
}
"""Field -> (function that encodes a value for the column, function that decodes it). None is not encoded."""

_FIELDS = [f.name for f in fields(RolloutRecord)]
_COLUMNS = [name for name in _FIELDS if name not in ("request", "seq")]
_FIXED = {"namespace", "id", "digest", "pool", "task_kind", "group", "sample_index", "mode", "created_at"}
_FIXED |= {"min_weights_version", "weights", "queue_rank", "metadata", "task"}
_DERIVED = ["reason", "tokens", "turns", "seconds", "suspicious", "failed_calls"]
"""Properties of a record that are columns too, for searches. They are written, and never read back."""
_WRITTEN = [*_COLUMNS, *_DERIVED]
_MOVING = [name for name in _WRITTEN if name not in _FIXED]

_NAMES = {name: f'"{name}"' for name in [*_FIELDS, *_DERIVED]} | {"request": "body"}

_SELECTED = ", ".join(_NAMES[n] for n in _FIELDS)
INSERT = f"INSERT INTO rollouts ({', '.join(_NAMES[n] for n in _WRITTEN)}) VALUES ({', '.join('?' * len(_WRITTEN))})"
"""Statement for the values of `to_row`."""
UPDATE = f"UPDATE rollouts SET {', '.join(_NAMES[n] + ' = ?' for n in _MOVING)} WHERE seq = ? AND cursor IS NULL"
"""Statement for the values of `to_moving`, followed by the seq. It changes neither terminal records nor the fields in
_FIXED."""


def select(index: str | None) -> str:
    """Return a SELECT whose rows `from_row` can convert. The caller adds the WHERE clause. If `index` is None, no index
    is used, and rows are read in order of seq.

    The index is named because SQLite has no statistics here: it could choose an index with which it must sort a million
    rows. SQLite raises an error if the named index cannot be used.
    """
    by = f"INDEXED BY {index}" if index else "NOT INDEXED"
    return f"SELECT {_SELECTED} FROM rollouts {by} JOIN requests USING (seq)"


def select_found(found: str) -> str:
    """Return a SELECT as `select` does, of the rows whose seq another SELECT returns. The caller adds the order."""
    return f"SELECT {_SELECTED} FROM ({found}) CROSS JOIN rollouts NOT INDEXED USING (seq) JOIN requests USING (seq)"


def select_by_item() -> str:
    """Return a SELECT as `select` does, from the index of the metadata's items. CROSS JOIN keeps SQLite from another order."""
    tables = "metadata_items CROSS JOIN rollouts NOT INDEXED ON rollouts.seq = rollout JOIN requests USING (seq)"
    return f"SELECT {_SELECTED} FROM {tables}"


def _encoder(names: list[str]) -> Callable[[RolloutRecord], list[Any]]:
    get = attrgetter(*names)
    coded = [(i, _CODECS[n][0]) for i, n in enumerate(names) if n in _CODECS]
    return lambda record: _translate(get(record), coded)


def _translate(values: Iterable[Any], coded: list[tuple[int, Callable[[Any], Any]]]) -> list[Any]:
    row = list(values)
    for index, code in coded:
        if row[index] is not None:
            row[index] = code(row[index])
    return row


to_row = _encoder(_WRITTEN)
to_moving = _encoder(_MOVING)
_DECODE = [(i, _CODECS[n][1]) for i, n in enumerate(_FIELDS) if n in _CODECS]


def from_row(row: Iterable[Any]) -> RolloutRecord:
    return RolloutRecord(*_translate(row, _DECODE))


VERSION_BOUND_QUERY = (
    'SELECT id, "group", stage, holder IS NOT NULL, endpoints, weights, weights_version FROM rollouts '
    "INDEXED BY rollouts_demanding WHERE namespace = ? AND pool = ? AND weights IS NOT NULL AND cursor IS NULL ORDER BY seq"
)
"""Query of rows for `version_bound_from`. The parameters are namespace and pool."""


def version_bound_from(row: tuple[Any, ...]) -> VersionBound:
    id, group, stage, leased, endpoints, weights, version = row
    demand = WeightsConstraint.model_validate_json(weights)
    return VersionBound(id, group, Stage(stage), bool(leased), mapping_of(endpoints), demand, version)
