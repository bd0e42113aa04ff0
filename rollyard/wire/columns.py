"""Results as arrays: one safetensors file that is read without parsing a number.

Arrays are ragged: the tokens of all segments follow each other, and offsets give the beginning of each segment and the
end of the last one. Segments and turns follow each other in the same way, with offsets for each sample. The rest is
JSON: a text for each sample, segment and turn, read only on demand, and `about`, which belongs to the whole file. The
metadata names the form and its version. A later version adds arrays; a reader ignores those that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic_core import from_json

from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Outcome, Segment, Trajectory, Turn
from rollyard.wire.array_file import Array, read_arrays, write_arrays

CONTENT_TYPE = "application/vnd.rollyard.columns"
FORM, VERSION = "rollyard-columns", 1
FRAME_LENGTH_BYTES = 8
R = TypeVar("R", Trajectory, Outcome)
_TOKEN_FIELDS = ("token_ids", "loss_mask", "logprobs", "weights_version")
_SEGMENT_JSON: Any = {*_TOKEN_FIELDS, "prompt_length"}
_TURN_JSON: Any = {"segment", "prompt_length", "response_length"}


@dataclass(frozen=True, eq=False)
class Columns:
    """Samples, their segments and turns. The arrays have the names of the tensors in the file, and may be read-only.

    A sample is one trajectory, or one outcome of a node agent. With n samples an array of offsets has n + 1 numbers:
    the segments of sample i are `sample_segment_offsets[i]` to `sample_segment_offsets[i + 1]`.
    """

    token_ids: Array
    """Ids of all tokens; int32, or int64 if an id needs it."""
    loss_mask: Array
    """1 for a sampled token, else 0; uint8."""
    logprobs: Array
    """0 for a token that was not sampled; float32 if this loses nothing, else float64."""
    weights_version: Array
    """Index into `versions`, or -1 for a token that was not sampled; int16, or int32 if there are too many versions."""
    segment_offsets: Array
    """Index of the first token of each segment."""
    segment_prompt_length: Array
    segment_json: Array
    segment_json_offsets: Array
    turn_segment: Array
    """Segment of each turn, counted within the turn's sample."""
    turn_prompt_length: Array
    turn_response_length: Array
    turn_json: Array
    turn_json_offsets: Array
    sample_segment_offsets: Array
    sample_turn_offsets: Array
    sample_json: Array
    sample_json_offsets: Array
    versions: tuple[str, ...] = ()
    """Names of the weights versions."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """JSON that belongs to all samples together, such as the groups of an answer."""

    def __len__(self) -> int:
        return len(self.sample_json_offsets) - 1

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Fields of each sample other than its segments and turns: id, status, reward, metrics, task and so on."""
        return [from_json(text) for text in _texts(self.sample_json, self.sample_json_offsets)]

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Reward of each sample; NaN if it has none."""
        return np.array([sample["reward"] for sample in self.samples], np.float64)

    def trajectories(self) -> list[Trajectory]:
        """The trajectories, with Python's own numbers. Raises ValueError if a sample is not a trajectory."""
        return self.read(Trajectory)

    def read(self, model: type[R], extra: Literal["ignore"] | None = None) -> list[R]:
        """The samples as models. With `extra="ignore"` fields of a newer release are ignored. Raises ValueError."""

        def segment(found: dict[str, Any]) -> Segment:
            tokens = {name: found.pop(name) for name in _TOKEN_FIELDS}  # `decode` has checked them
            empty: dict[str, list[Any]] = {name: [] for name in _TOKEN_FIELDS}
            return evolve(Segment.model_validate(found | empty, extra=extra), **tokens)

        def turn(found: dict[str, Any]) -> Turn:
            return Turn.model_validate(found, extra=extra)

        def sample(found: dict[str, Any]) -> R:
            parts = {name: found.pop(name) for name in ("segments", "turns")}
            empty: dict[str, list[Any]] = {name: [] for name in parts}
            return evolve(model.model_validate(found | empty, extra=extra), **parts)

        # each part is validated without the parts below it, which are valid: otherwise Python would check each token
        # again
        return [sample(found) for found in self._documents(segment, turn)]

    def documents(self) -> list[dict[str, Any]]:
        """The samples as in JSON."""
        return self._documents(lambda segment: segment, lambda turn: turn)

    def _documents(
        self, segment: Callable[[dict[str, Any]], Any], turn: Callable[[dict[str, Any]], Any]
    ) -> list[dict[str, Any]]:
        texts = list(_texts(self.segment_json, self.segment_json_offsets))
        names = (*self.versions, None)  # the index -1 is null

        def one(i: int) -> dict[str, Any]:
            tokens = slice(self.segment_offsets[i], self.segment_offsets[i + 1])
            mask, logprobs = self.loss_mask[tokens], self.logprobs[tokens].tolist()
            for absent in np.flatnonzero(mask == 0).tolist():
                logprobs[absent] = None
            return {
                "token_ids": self.token_ids[tokens].tolist(),
                "loss_mask": mask.tolist(),
                "logprobs": logprobs,
                "weights_version": _named(self.weights_version[tokens], names),
                "prompt_length": int(self.segment_prompt_length[i]),
                **from_json(texts[i]),
            }

        numbers = zip(
            self.turn_segment.tolist(),
            self.turn_prompt_length.tolist(),
            self.turn_response_length.tolist(),
            _texts(self.turn_json, self.turn_json_offsets),
            strict=True,
        )
        turns = [
            turn({"segment": at, "prompt_length": prompt, "response_length": response, **from_json(text)})
            for at, prompt, response, text in numbers
        ]
        return [
            {
                **sample,
                "segments": [segment(one(i)) for i in range(*segments)],
                "turns": turns[slice(*turn_range)],
            }
            for sample, segments, turn_range in zip(
                self.samples,
                pairwise(self.sample_segment_offsets.tolist()),
                pairwise(self.sample_turn_offsets.tolist()),
                strict=True,
            )
        ]

    def with_samples(self, samples: Sequence[Mapping[str, Any]]) -> Columns:
        """The same segments and turns, with these fields of the samples and without `about`."""
        texts, offsets = _packed(json.dumps(sample).encode() for sample in samples)
        return replace(self, sample_json=texts, sample_json_offsets=offsets, about={})

    def to_bytes(self) -> bytes:
        """The safetensors file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        about = json.dumps(dict(self.about))
        metadata = {"form": FORM, "version": str(VERSION), "versions": json.dumps(self.versions), "about": about}
        return write_arrays(arrays, metadata)


_ARRAYS = [f.name for f in fields(Columns) if f.name not in ("versions", "about")]


def columns_of(results: Sequence[Trajectory | Outcome], about: Mapping[str, Any] | None = None) -> Columns:
    """Make the arrays of trajectories or outcomes. Raises OverflowError for an integer of more than 64 bits."""
    segments = [segment for result in results for segment in result.segments]
    turns = [turn for result in results for turn in result.turns]
    versions: dict[str | None, int] = {None: -1}
    segment_json, segment_json_offsets = _packed(s.model_dump_json(exclude=_SEGMENT_JSON).encode() for s in segments)
    turn_json, turn_json_offsets = _packed(t.model_dump_json(exclude=_TURN_JSON).encode() for t in turns)
    sample_json, sample_json_offsets = _packed(
        r.model_dump_json(exclude={"segments", "turns"}).encode() for r in results
    )
    masks = [_mask(s.loss_mask) for s in segments]
    return Columns(
        token_ids=_joined((_integers(s.token_ids, np.int32) for s in segments), np.int32),
        loss_mask=_joined(masks, np.uint8),
        logprobs=_joined((_logprobs(s.logprobs, mask) for s, mask in zip(segments, masks, strict=True)), np.float32),
        weights_version=_joined(
            (_indices(s.weights_version, mask, versions) for s, mask in zip(segments, masks, strict=True)), np.int16
        ),
        segment_offsets=_offsets(len(s.token_ids) for s in segments),
        segment_prompt_length=np.array([s.prompt_length for s in segments], np.int64),
        segment_json=segment_json,
        segment_json_offsets=segment_json_offsets,
        turn_segment=np.array([t.segment for t in turns], np.int64),
        turn_prompt_length=np.array([t.prompt_length for t in turns], np.int64),
        turn_response_length=np.array([t.response_length for t in turns], np.int64),
        turn_json=turn_json,
        turn_json_offsets=turn_json_offsets,
        sample_segment_offsets=_offsets(len(r.segments) for r in results),
        sample_turn_offsets=_offsets(len(r.turns) for r in results),
        sample_json=sample_json,
        sample_json_offsets=sample_json_offsets,
        versions=tuple(version for version in versions if version is not None),
        about=about or {},
    )


def join(parts: Sequence[Columns], about: Mapping[str, Any] | None = None) -> Columns:
    """Join the samples of several files, one after the other. The `about` of the parts is dropped."""
    versions = {version: i for i, version in enumerate(dict.fromkeys(chain.from_iterable(p.versions for p in parts)))}
    found: dict[str, Array] = {}
    for name in _ARRAYS:
        arrays = [getattr(part, name) for part in parts]
        if name.endswith("offsets"):
            found[name] = _joined_offsets(arrays)
        elif name == "weights_version":
            found[name] = _joined(
                (_renumbered(p.weights_version, [versions[v] for v in p.versions]) for p in parts), np.int16
            )
        else:
            found[name] = _joined(arrays, _SMALLEST.get(name, np.int64))
    return Columns(**found, versions=tuple(versions), about=about or {})


_SMALLEST: dict[str, DTypeLike] = {
    **{"token_ids": np.int32, "loss_mask": np.uint8, "logprobs": np.float32},
    **{name: np.uint8 for name in _ARRAYS if name.endswith("_json")},
}
"""Type of each array that has no number."""


def encode(results: Sequence[Trajectory | Outcome], about: Mapping[str, Any] | None = None) -> bytes:
    """Write trajectories or outcomes as one file, without loss."""
    return columns_of(results, about).to_bytes()


def is_columns(data: bytes) -> bool:
    """Whether this is a safetensors file and not JSON. Its first eight bytes are a length with zeros, which JSON never has."""
    return len(data) > 8 and data[7] == 0


def decode(data: bytes | bytearray | memoryview) -> Columns:
    """Read a file without a copy of its arrays. Arrays of a bytearray can be written. Raises ValueError."""
    try:
        arrays, metadata = read_arrays(data, _ARRAYS)
        if metadata.get("form") != FORM or int(metadata["version"]) > VERSION:
            raise ValueError(f"its form is {metadata.get('form')!r}, version {metadata.get('version')!r}")
        versions = tuple(str(version) for version in json.loads(metadata["versions"]))
        columns = Columns(**arrays, versions=versions, about=json.loads(metadata["about"]))
        _check(columns)
        return columns
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"this is no columns file that this release reads: {error}") from None


def framed(data: bytes) -> bytes:
    """Return a file for a stream of files: eight bytes of length, little-endian, precede it. Length 0 keeps a stream alive."""
    return len(data).to_bytes(FRAME_LENGTH_BYTES, "little") + data


def _check(columns: Columns) -> None:
    """Check everything that a reader relies on; otherwise damage would appear as wrong tokens. Raises ValueError."""
    tokens, segments, turns = (
        len(found) for found in (columns.token_ids, columns.segment_prompt_length, columns.turn_segment)
    )
    lengths: dict[str, int] = {
        **dict.fromkeys(_TOKEN_FIELDS, tokens),
        "segment_offsets": segments + 1,
        "segment_json_offsets": segments + 1,
        **dict.fromkeys(("turn_prompt_length", "turn_response_length"), turns),
        "turn_json_offsets": turns + 1,
        **dict.fromkeys(("sample_segment_offsets", "sample_turn_offsets"), len(columns) + 1),
    }
    ends = {
        "segment_offsets": tokens,
        "sample_segment_offsets": segments,
        "sample_turn_offsets": turns,
        **{f"{name}_json_offsets": len(getattr(columns, f"{name}_json")) for name in ("segment", "turn", "sample")},
    }
    for name in _ARRAYS:
        if getattr(columns, name).dtype.kind not in ("f" if name == "logprobs" else "iu"):
            raise ValueError(f"{name} has the wrong type of numbers")
    for name, length in lengths.items():
        if len(getattr(columns, name)) != length:
            raise ValueError(f"{name} has {len(getattr(columns, name))} numbers instead of {length}")
    for name, end in ends.items():
        offsets = getattr(columns, name)
        if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
            raise ValueError(f"{name} must rise from 0 to {end}")
    indices = columns.weights_version
    if tokens and not (indices.min() >= -1 and indices.max() < len(columns.versions)):
        raise ValueError("weights_version is beyond the names of the versions")
    if not np.array_equal(indices >= 0, columns.loss_mask != 0):
        raise ValueError("weights_version must be -1 exactly where loss_mask is 0")


# one array


def _integers(values: Sequence[int], smallest: DTypeLike) -> Array:
    try:
        return np.array(values, smallest)
    except OverflowError:
        return np.array(values, np.int64)


def _mask(values: Sequence[int]) -> Array:
    try:
        return np.frombuffer(bytes(values), np.uint8)  # a third of the time that numpy takes for a list
    except ValueError:  # a number beyond a byte
        return np.array(values, np.int64)


def _logprobs(values: Sequence[float | None], mask: Array) -> Array:
    wide = np.array(values, np.float64)  # null becomes NaN
    wide[mask == 0] = 0.0
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return narrow if np.array_equal(narrow, wide, equal_nan=True) else wide


def _indices(values: Sequence[str | None], mask: Array, versions: dict[str | None, int]) -> Array:
    """Return the indices of versions; new versions are added. Most segments have one version, which needs no look-up
    per token."""
    own = set(values)
    for version in sorted(v for v in own if v is not None):
        versions.setdefault(version, len(versions) - 1)
    dtype: DTypeLike = np.int16 if len(versions) <= 1 << 15 else np.int32
    if len(own - {None}) == 1:
        return np.where(mask != 0, max(versions[v] for v in own), -1).astype(dtype)
    return np.fromiter(map(versions.__getitem__, values), dtype, len(values))


def _named(indices: Array, names: Sequence[str | None]) -> list[str | None]:
    """Return the names of the indices, run by run: neighbouring tokens mostly have the same version."""
    found: list[str | None] = []
    edges = np.flatnonzero(indices[1:] != indices[:-1]) + 1
    for start, end in pairwise([0, *edges.tolist(), len(indices)]):
        found += [names[indices[start]]] * (end - start) if end else []
    return found


def _renumbered(indices: Array, numbers: Sequence[int]) -> Array:
    if list(numbers) == list(range(len(numbers))):
        return indices
    return _integers([*numbers, -1], np.int16)[indices]  # the index -1 stays -1


def _joined(arrays: Iterable[Array], smallest: DTypeLike) -> Array:
    """Join arrays into one of the widest type."""
    found = list(arrays)
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, smallest), *found])


def _offsets(lengths: Iterable[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _joined_offsets(arrays: Sequence[Array]) -> Array:
    ends = _offsets(int(array[-1]) for array in arrays)
    return np.concatenate([np.zeros(1, np.int64), *(a[1:] + end for a, end in zip(arrays, ends[:-1], strict=True))])


def _packed(texts: Iterable[bytes]) -> tuple[Array, Array]:
    found = list(texts)
    return np.frombuffer(b"".join(found), np.uint8), _offsets(map(len, found))


def _texts(packed: Array, offsets: Array) -> Iterable[bytes]:
    whole = packed.tobytes()
    return (whole[start:end] for start, end in pairwise(offsets.tolist()))
