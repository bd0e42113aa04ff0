"""Parquet files of trajectories: one row for each rollout. Nothing is lost: `read_parquet` gives back equal trajectories.

The columns that people filter by are plain. Tokens are lists of numbers. What has no column of its own is in `json` of
the row, the segment and the turn. Needs the extra `parquet` (pyarrow).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollyard.core.errors import BadRequest
from rollyard.trajectory.array_file import Array
from rollyard.trajectory.columns import Columns, join

if TYPE_CHECKING:
    import pyarrow as pa

FORM, VERSION = "rollyard-rollouts", "1"
ROWS, TOKENS, TEXT_BYTES = 1024, 1 << 20, 64 << 20
"""Greatest numbers of rollouts, of tokens and of bytes of text that wait for their row group. One rollout may exceed the
last two."""
_DICTIONARY = (
    "namespace", "mode", "status", "task_kind", "error_reason", "batch",
    *(f"segments.list.element.{name}.list.element" for name in ("loss_mask", "weights_version")),
)  # fmt: skip
"""Columns of few values. A dictionary of the other ones would be as large as they are, and is made at half of the cost."""
_ENCODINGS = {
    "segments.list.element.token_ids.list.element": "DELTA_BINARY_PACKED",
    "segments.list.element.logprobs.list.element": "BYTE_STREAM_SPLIT",
}


def load_pyarrow() -> Any:
    """Import pyarrow. Raises BadRequest if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadRequest("Parquet needs pyarrow: pip install 'rollyard[parquet]', or choose JSON lines") from None
    return pyarrow


class ParquetFile:
    """A file that is being written. Its memory does not grow with the number of rollouts."""

    def __init__(self, path: Path) -> None:
        """Raises BadRequest if pyarrow is missing."""
        self._pa = load_pyarrow()
        metadata = {"form": FORM, "version": VERSION}
        schema = schema_of(self._pa).with_metadata(metadata)
        self._writer = self._pa.parquet.ParquetWriter(
            path, schema, compression="zstd", use_dictionary=list(_DICTIONARY), column_encoding=_ENCODINGS
        )
        self._schema = schema
        self._waiting: list[Columns] = []
        self._rows = self._tokens = self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def write(self, columns: Columns) -> None:
        """Add rollouts."""
        self._waiting.append(columns)
        self._rows += len(columns)
        self._tokens += len(columns.token_ids)
        self._bytes += sum(map(len, (columns.sample_json, columns.segment_json, columns.turn_json)))
        if self._rows >= ROWS or self._tokens >= TOKENS or self._bytes >= TEXT_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(table_of(self._pa, join(self._waiting), self._schema))
        self._waiting.clear()
        self._rows = self._tokens = self._bytes = 0


def schema_of(pa: Any) -> pa.Schema:
    segment = pa.struct([
        ("token_ids", pa.list_(pa.int64())),
        ("loss_mask", pa.list_(pa.int64())),
        ("logprobs", pa.list_(pa.float64())),
        ("weights_version", pa.list_(pa.string())),
        ("prompt_length", pa.int64()),
        ("json", pa.string()),
    ])  # fmt: skip
    turn = pa.struct([
        ("segment", pa.int64()), ("prompt_length", pa.int64()), ("response_length", pa.int64()), ("json", pa.string()),
    ])  # fmt: skip
    plain = [(name, kind(pa)) for name, kind in _PLAIN.items()]
    return pa.schema([*plain, ("json", pa.string()), ("segments", pa.list_(segment)), ("turns", pa.list_(turn))])


_PLAIN: dict[str, Any] = {
    "id": lambda pa: pa.string(), "namespace": lambda pa: pa.string(), "group": lambda pa: pa.string(),
    "sample_index": lambda pa: pa.int64(), "attempt": lambda pa: pa.int64(), "mode": lambda pa: pa.string(),
    "status": lambda pa: pa.string(), "reward": lambda pa: pa.float64(), "task_kind": lambda pa: pa.string(),
    "error_reason": lambda pa: pa.string(), "batch": lambda pa: pa.string(), "delivery": lambda pa: pa.int64(),
    "staleness": lambda pa: pa.int64(),
}  # fmt: skip
"""Columns for filters. They repeat fields of `json`; the last three are those of a delivered group."""


def _plain_value(sample: dict[str, Any], name: str) -> Any:
    if name == "task_kind":
        return sample["task"]["kind"]
    if name == "error_reason":
        return (sample.get("error") or {}).get("reason")
    return sample.get(name)


def table_of(pa: Any, columns: Columns, schema: pa.Schema) -> pa.Table:
    """Return the rollouts as a table."""
    offsets, unsampled = _int32(pa, columns.segment_offsets), columns.loss_mask == 0

    def tokens(values: Any) -> Any:
        return pa.ListArray.from_arrays(offsets, values)

    names = pa.array(columns.versions, pa.string())
    versions = names.take(pa.array(columns.weights_version, pa.int32(), mask=unsampled))
    segments = pa.StructArray.from_arrays(
        [
            tokens(pa.array(columns.token_ids, pa.int64())),
            tokens(pa.array(columns.loss_mask, pa.int64())),
            tokens(pa.array(columns.logprobs.astype(np.float64), pa.float64(), mask=unsampled)),
            tokens(versions),
            pa.array(columns.segment_prompt_length, pa.int64()),
            _strings(pa, columns.segment_json, columns.segment_json_offsets),
        ],
        fields=list(schema.field("segments").type.value_type),
    )
    turns = pa.StructArray.from_arrays(
        [
            pa.array(columns.turn_segment, pa.int64()),
            pa.array(columns.turn_prompt_length, pa.int64()),
            pa.array(columns.turn_response_length, pa.int64()),
            _strings(pa, columns.turn_json, columns.turn_json_offsets),
        ],
        fields=list(schema.field("turns").type.value_type),
    )
    plain = [pa.array([_plain_value(s, n) for s in columns.samples], kind(pa)) for n, kind in _PLAIN.items()]
    rest = [
        _strings(pa, columns.sample_json, columns.sample_json_offsets),
        pa.ListArray.from_arrays(_int32(pa, columns.sample_segment_offsets), segments),
        pa.ListArray.from_arrays(_int32(pa, columns.sample_turn_offsets), turns),
    ]
    return pa.Table.from_arrays([*plain, *rest], schema=schema)


def read_parquet(path: Path | str) -> Iterator[Columns]:
    """Yield the rollouts of a file, some at a time. Raises BadRequest if it is not such a file, or pyarrow is missing."""
    pa = load_pyarrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            if metadata.get(b"form") != FORM.encode() or int(metadata[b"version"]) > int(VERSION):
                raise BadRequest(f"{path} has no rollouts of `rollyard export` that this release reads")
            for i in range(file.num_row_groups):
                yield _columns_of(pa, file.read_row_group(i, columns=["json", "segments", "turns"]))
    except (OSError, pa.ArrowInvalid) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from None


def _columns_of(pa: Any, table: pa.Table) -> Columns:
    json, segment_lists, turn_lists = (table.column(name).combine_chunks() for name in ("json", "segments", "turns"))
    segments, turns = segment_lists.flatten(), turn_lists.flatten()
    part = {name: segments.field(name) for name in ("token_ids", "loss_mask", "logprobs", "weights_version")}
    flat = {name: values.flatten() for name, values in part.items()}
    versions = flat["weights_version"].dictionary_encode()
    indices = versions.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    sample_json, sample_json_offsets = _bytes(json)
    segment_json, segment_json_offsets = _bytes(segments.field("json"))
    turn_json, turn_json_offsets = _bytes(turns.field("json"))
    return Columns(
        token_ids=_numbers(flat["token_ids"]),
        loss_mask=_numbers(flat["loss_mask"]),
        logprobs=_numbers(flat["logprobs"].fill_null(0.0)),
        weights_version=indices.astype(np.int32),
        segment_offsets=_offsets(part["token_ids"]),
        segment_prompt_length=_numbers(segments.field("prompt_length")),
        segment_json=segment_json,
        segment_json_offsets=segment_json_offsets,
        turn_segment=_numbers(turns.field("segment")),
        turn_prompt_length=_numbers(turns.field("prompt_length")),
        turn_response_length=_numbers(turns.field("response_length")),
        turn_json=turn_json,
        turn_json_offsets=turn_json_offsets,
        sample_segment_offsets=_offsets(segment_lists),
        sample_turn_offsets=_offsets(turn_lists),
        sample_json=sample_json,
        sample_json_offsets=sample_json_offsets,
        versions=tuple(versions.dictionary.to_pylist()),
    )


def _int32(pa: Any, offsets: Array) -> Any:
    return pa.array(offsets.astype(np.int32))


def _strings(pa: Any, data: Array, offsets: Array) -> Any:
    """Return UTF-8 texts that stand one after the other as an array of strings."""
    buffers = (pa.py_buffer(np.ascontiguousarray(offsets, np.int32)), pa.py_buffer(np.ascontiguousarray(data)))
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)


def _bytes(texts: Any) -> tuple[Array, Array]:
    """Return the texts of an array one after the other, with their offsets."""
    found = [text.as_buffer() for text in texts]
    lengths: Sequence[int] = [len(buffer) for buffer in found]
    data = np.frombuffer(b"".join(found), np.uint8)
    return data, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _numbers(values: Any) -> Array:
    found: Array = values.to_numpy(zero_copy_only=False)
    return found


def _offsets(lists: Any) -> Array:
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
