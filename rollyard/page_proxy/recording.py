"""A recorded training: everything that a server stores of ended work, as one compressed file of JSON lines.

A line has the name of its table, a record as JSON, and blobs. A field that a later release adds gets its default when the
file is read, and a field that it no longer has is ignored, as in rows of the store. Times are moved when the file is read:
the training has then just ended.
"""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import zstandard
from pydantic import TypeAdapter

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import KindObject, ObjectMeta, evolve
from rollyard.kinds.registry import POOL_KINDS, parse_object
from rollyard.kinds.usage import EndedAllocation
from rollyard.store.base import RolloutFilter, RolloutRecord
from rollyard.store.batch_records import BatchRecord, DatasetRecord, GroupRecord, SeriesRecord, StepRecord, TaskHistory
from rollyard.store.metric_buckets import POOLS, Bucket
from rollyard.store.metric_tables import BucketRange, TrackKey
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store

RECORDING = Path(__file__).with_name("recorded_training.zst")
MODEL = "@model@"
"""Stands in the file for the folder of the policy's tokenizer."""
MOST_ROLLOUTS = 5000
_UNIX = re.compile(r"\b[12][0-9]{9}(\.[0-9]+)?\b")
_ISO = re.compile(r"\b20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]+)?(Z|\+00:00)")
_RECORDS: dict[str, TypeAdapter[Any]] = {
    "rollout": TypeAdapter(RolloutRecord),
    "batch": TypeAdapter(BatchRecord),
    "group": TypeAdapter(GroupRecord),
    "series": TypeAdapter(SeriesRecord),
    "dataset": TypeAdapter(DatasetRecord),
    "history": TypeAdapter(TaskHistory),
    "step": TypeAdapter(StepRecord),
    "ended_allocation": TypeAdapter(EndedAllocation),
    "bucket": TypeAdapter(Bucket),
}


@dataclass(frozen=True)
class RecordedLine:
    table: str
    """`recording` (the first line), `file` of the tokenizer, `object`, or a table of the store."""
    record: Any
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def to_json(self) -> str:
        blobs = {name: base64.b64encode(blob).decode() for name, blob in self.blobs.items()}
        return json.dumps({"table": self.table, "record": self.record, "blobs": blobs})

    @classmethod
    def parse(cls, text: str, shift: Callable[[str], str]) -> RecordedLine:
        """`shift`: moves the times in the record's text."""
        found = json.loads(text)
        blobs = {name: base64.b64decode(blob) for name, blob in found["blobs"].items()}
        return cls(found["table"], json.loads(shift(json.dumps(found["record"]))), blobs)


async def recorded_lines(store: Store, objects: Sequence[KindObject]) -> list[RecordedLine]:
    """Return the ended work of namespace `default`. `objects`: pools and events as they were during the training."""
    rollouts = await store.rollouts.list_rollouts(RolloutFilter(namespace="default", limit=MOST_ROLLOUTS))
    ended = [one for one in rollouts if one.status.terminal]
    times = [one.created_at for one in ended] + [one.finished_at or one.created_at for one in ended]
    lines = [RecordedLine("recording", {"began": min(times), "ended": max(times)})]
    lines += [RecordedLine("object", one.dump()) for one in objects if not isinstance(one, Allocation)]
    lines += [_line("ended_allocation", one) for one in reversed(await store.ended_allocations.since(0.0))]
    lines += await store.rollouts.transact(lambda tx: list(_batch_lines(tx, ended)))
    lines += await _samples(store, [one for one in objects if isinstance(one, POOL_KINDS)], min(times), max(times))
    for one in ended:
        named = {name: ref for name in ("result", "artifact") if (ref := getattr(one, name)) is not None}
        blobs = {name: zstandard.decompress(await store.packs.read(ref)) for name, ref in named.items()}
        lines.append(_line("rollout", replace(one, seq=0, cursor=None, result=None, artifact=None), blobs))
    return lines


def write(
    lines: Sequence[RecordedLine], tokenizer: Mapping[str, bytes], folders: Mapping[str, str], file: Path
) -> None:
    """Write a recording. `tokenizer`: files of the policy's tokenizer. `folders`: folders of this machine -> what stands for
    them in the file."""
    files = [RecordedLine("file", {"name": name}, {"data": data}) for name, data in tokenizer.items()]
    text = "\n".join(line.to_json() for line in [*lines, *files])
    for folder, word in folders.items():
        text = text.replace(folder, word)
    file.write_bytes(zstandard.compress(text.encode(), 19))


def read(file: Path, model: Path) -> tuple[list[RecordedLine], float]:
    """Return the lines of a recording, as if the training had just ended, and the time of its beginning. Write the policy's
    tokenizer into the new folder `model`."""
    text = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read().decode()
    first, *rest = text.replace(MODEL, str(model)).split("\n")
    about = RecordedLine.parse(first, lambda same: same).record
    step = POOLS[0].step  # samples stay at whole multiples of it
    shift = _Shift(about["began"], about["ended"], (time.time() - about["ended"]) // step * step)
    lines = [RecordedLine.parse(line, shift) for line in rest]
    model.mkdir()
    for line in (one for one in lines if one.table == "file"):
        (model / Path(line.record["name"]).name).write_bytes(line.blobs["data"])
    return lines, about["began"] + shift.seconds


async def _samples(store: Store, pools: Sequence[KindObject], began: float, ended: float) -> list[RecordedLine]:
    step = POOLS[0].step
    span = BucketRange(int(began // step) * step, int(ended // step + 1) * step, step)
    names = {pool.metadata.name for pool in pools}
    keys = [key for name in sorted(names) for key in await store.metrics.tracks("default", name)]
    rows = await store.metrics.read(keys, span)
    found = [(start, key, bucket) for key, some in zip(keys, rows, strict=True) for start, bucket in some]
    return [
        RecordedLine("sample", {"start": start, "track": list(key), "bucket": _line("bucket", bucket).record})
        for start, key, bucket in sorted(found, key=lambda one: one[0])
    ]


def _batch_lines(tx: Transaction, ended: Iterable[RolloutRecord]) -> Iterator[RecordedLine]:
    tables = tx.batches
    for dataset in tables.list_datasets("default"):
        yield _line("dataset", dataset)
        for index in range(dataset.tasks):
            if (known := tables.history("default", dataset.name, index)) is not None:
                yield RecordedLine(
                    "history", {"dataset": dataset.name, "index": index, **_line("history", known).record}
                )
    found = list(reversed(tables.list_batches("default", MOST_ROLLOUTS)))
    for series in {one.name: one for _, one in found if one is not None}.values():
        yield _line("series", series)
        yield from (_line("step", step) for step in tables.training_steps("default", series.name, None, MOST_ROLLOUTS))
    for batch, _ in found:
        yield _line("batch", replace(batch, seq=0))
    for id in dict.fromkeys(one.group for one in ended if one.group is not None):
        if (group := tables.group("default", id)) is not None:
            yield _line("group", group)


def _line(table: str, record: Any, blobs: Mapping[str, bytes] | None = None) -> RecordedLine:
    return RecordedLine(table, _RECORDS[table].dump_python(record, mode="json"), blobs or {})


async def restore(lines: Sequence[RecordedLine], began: float, data: Path) -> None:
    """Make a data folder with the lines of a recording. `began`: time of the training's beginning."""
    store = await Store.open(data, _TrainingClock(began))
    try:
        for line in (one for one in lines if one.table == "object"):
            await store.objects.create(_at_rest(parse_object(line.record)))
        for line in (one for one in lines if one.table == "ended_allocation"):
            await store.ended_allocations.add(_of_a_pool_at_rest(_record(line)))
        await store.rollouts.transact(lambda tx: _put(tx, lines))
        samples: dict[int, list[tuple[TrackKey, Bucket]]] = {}
        for line in (one for one in lines if one.table == "sample"):
            bucket = _RECORDS["bucket"].validate_python(line.record["bucket"], extra="ignore")
            samples.setdefault(line.record["start"], []).append((TrackKey(*line.record["track"]), bucket))
        for start, some in samples.items():
            await store.metrics.record(start, some)
    finally:
        await store.close()


def _at_rest(found: KindObject) -> KindObject:
    """Return the object as a new one. A pool is suspended, because its jobs have ended and nothing runs in a recording."""
    meta = ObjectMeta(name=found.metadata.name, namespace=found.metadata.namespace, labels=found.metadata.labels)
    new = evolve(found, metadata=meta)
    return evolve(new, spec=evolve(new.spec, suspend=True)) if isinstance(new, POOL_KINDS) else new


def _of_a_pool_at_rest(ended: EndedAllocation) -> EndedAllocation:
    """Return the end with a reason that is true here: the recorder deleted its pools, and here they are suspended."""
    return evolve(ended, reason=ended.reason.replace("its pool is deleted", "its pool is suspended"))


def _put(tx: Transaction, lines: Sequence[RecordedLine]) -> None:
    for line in lines:
        match line.table:
            case "rollout":
                refs = {name: tx.add_blob(zstandard.compress(blob)) for name, blob in line.blobs.items()}
                tx.put(replace(_record(line), **refs))
            case "batch":
                tx.batches.put_batch(_record(line))
            case "group":
                tx.batches.put_group(_record(line))
            case "series":
                tx.batches.put_series(_record(line))
            case "step":
                tx.batches.put_training_step(_record(line))
            case "dataset":
                tx.batches.put_dataset(_record(line))
            case "history":
                place = ("default", line.record["dataset"], line.record["index"])
                tx.batches.put_history(*place, _record(line))


def _record(line: RecordedLine) -> Any:
    """Return the record. Raises pydantic.ValidationError if it has not the fields that this release needs."""
    return _RECORDS[line.table].validate_python(line.record, extra="ignore")


@dataclass(frozen=True)
class _TrainingClock:
    """Clock that stands at the beginning of the training, when its objects were created."""

    now: float

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@dataclass(frozen=True)
class _Shift:
    """Moves the times of the training in a text, and no other numbers."""

    began: float
    ended: float
    seconds: float

    def __call__(self, text: str) -> str:
        return _ISO.sub(self._iso, _UNIX.sub(self._unix, text))

    def _is_in_training(self, at: float) -> bool:
        return self.began - 3600 < at < self.ended + 3600

    def _unix(self, found: re.Match[str]) -> str:
        at = float(found[0])
        if not self._is_in_training(at):
            return found[0]
        moved = at + self.seconds
        return f"{moved:.6f}" if found[1] else str(round(moved))

    def _iso(self, found: re.Match[str]) -> str:
        at = datetime.fromisoformat(found[0])
        if not self._is_in_training(at.timestamp()):
            return found[0]
        moved = datetime.fromtimestamp(at.timestamp() + self.seconds, at.tzinfo)
        return moved.isoformat(timespec="microseconds" if found[1] else "seconds").replace("+00:00", found[2])
