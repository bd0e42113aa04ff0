"""Records of batches as rows. Fields that queries need are columns. All other fields are in one JSON body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, astuple, fields, replace
from typing import Any, TypeVar

from rollyard.kinds.batch import BatchStatus
from rollyard.kinds.rollout import Status
from rollyard.store.batch_records import (
    BatchRecord,
    EndedRollout,
    GroupRecord,
    GroupState,
    LengthSums,
    PutBack,
    RewardSums,
    SeriesRecord,
    StepRecord,
    TaskHistory,
)

T = TypeVar("T", BatchRecord, GroupRecord, SeriesRecord, StepRecord, TaskHistory)

BATCH_COLUMNS = ("namespace", "id", "digest", "request", "pool", "series", "created_at", "seq", "status", "ended_at")
GROUP_COLUMNS = ("namespace", "id", "series", "number", "pool", "n", "batch", "state", "delivery")
SERIES_COLUMNS = ("namespace", "name", "digest", "dataset")
STEP_COLUMNS = ("namespace", "series", "step", "batch")


def _sums(values: list[Any]) -> LengthSums:
    return LengthSums(*values)


def _reward_sums(*values: Any) -> RewardSums:
    *numbers, counts = values
    return replace(RewardSums(*numbers), counts=tuple((reward, count) for reward, count in counts))


def _sums_list(sums: LengthSums) -> list[Any]:
    return [sums.rollouts, sums.tokens, sums.turns, sums.seconds]


_TO_JSON: dict[str, Callable[[Any], Any]] = {
    "whole_lengths": _sums_list,
    "delivered_lengths": _sums_list,
    "ended": lambda ended: [
        [r.sample, r.status.value, r.reward, r.tokens, r.turns, r.seconds, r.tool_calls] for r in ended
    ],
    "put_back": lambda tasks: [[t.index, t.epoch, t.tries, t.due] for t in tasks],
    "used": astuple,
    "unused": astuple,
}
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "whole_lengths": _sums,
    "delivered_lengths": _sums,
    "ended": lambda rows: tuple(EndedRollout(sample, Status(status), *rest) for sample, status, *rest in rows),
    "put_back": lambda rows: tuple(PutBack(*row) for row in rows),
    "used": lambda sums: _reward_sums(*sums),
    "unused": lambda sums: _reward_sums(*sums),
    "status": BatchStatus,
    "state": GroupState,
}
_NO_DEFAULT = object()


def _body_fields(kind: type, columns: Iterable[str] = ()) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    """Name, default and encoder of each field that is not a column."""
    return [
        (f.name, f.default if f.default is not MISSING else _NO_DEFAULT, _TO_JSON.get(f.name))
        for f in fields(kind)
        if f.name not in columns
    ]


_BODIES = {
    BatchRecord: _body_fields(BatchRecord, BATCH_COLUMNS),
    GroupRecord: _body_fields(GroupRecord, GROUP_COLUMNS),
    SeriesRecord: _body_fields(SeriesRecord, SERIES_COLUMNS),
    StepRecord: _body_fields(StepRecord, STEP_COLUMNS),
    TaskHistory: _body_fields(TaskHistory),
}


def body(record: BatchRecord | GroupRecord | SeriesRecord | StepRecord | TaskHistory) -> str:
    """Return the body as JSON: all fields that are not columns, except those with their default value."""
    found = {}
    for name, default, encode in _BODIES[type(record)]:
        value = getattr(record, name)
        if value != default:
            found[name] = value if encode is None else encode(value)
    return json.dumps(found, separators=(",", ":"))


def parse(kind: type[T], columns: Iterable[str], row: tuple[Any, ...]) -> T:
    """Return the record of a row. The row has the values of `columns` and then the body."""
    *values, text = row
    found = {**dict(zip(columns, values, strict=True)), **json.loads(text)}
    return kind(**{name: _FROM_JSON[name](v) if name in _FROM_JSON else v for name, v in found.items()})
