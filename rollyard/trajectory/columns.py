"""Columns files: results in one safetensors file, with all data of tokens as arrays that need no parsing.

Each array of tokens has the tokens of all segments, one segment after another. An array of offsets has the index at
which each segment begins, and as its last number the index at which the last segment ends. The segments and turns of
all samples are stored in the same way. These fields are arrays too: the prompt length of a segment, and the segment,
prompt length and response length of a turn. All other fields are JSON: one text for each sample, segment and turn,
and the text `about` for the whole file. The texts of samples, segments and turns are parsed on demand. The metadata has
the name of the form and its version. A later release may add arrays under the same version: a reader ignores arrays
that it does not know, and refuses a file of a higher version.

Writer and reader are in one file, because each array is made, checked, cut, joined and read in the same order.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic_core import from_json

from rollyard.kinds.base import evolve
from rollyard.trajectory.array_file import Array, read_arrays, write_arrays
from rollyard.trajectory.outcome import Outcome
from rollyard.trajectory.segment import Segment
from rollyard.trajectory.trajectory import Trajectory
from rollyard.trajectory.turn import Turn

CONTENT_TYPE = "application/vnd.rollyard.columns"
FORM, VERSION = "rollyard-columns", 1
R = TypeVar("R", bound=Outcome)
T = TypeVar("T")
_TOKEN_FIELDS = ("token_ids", "loss_mask", "logprobs", "weights_version")
_SEGMENT_JSON: Any = {*_TOKEN_FIELDS, "prompt_length"}
_TURN_JSON: Any = {"segment", "prompt_length", "response_length"}


@dataclass(frozen=True, eq=False)
class Columns:
    """Samples with their segments and turns. Each array has the name of its tensor in the file, and may be read-only.

    A sample is one trajectory, or one outcome of a node agent. For n samples an array of offsets has n + 1 numbers. The
    segments of sample i have the indices from `sample_segment_offsets[i]` up to, but not including,
    `sample_segment_offsets[i + 1]`.
    """

    token_ids: Array
    """Ids of all tokens; int32, or int64 if an id is too large for int32."""
    loss_mask: Array
    """1 for a sampled token, else 0; uint8."""
    logprobs: Array
    """Logprob of each token, 0 for a token that was not sampled; float32 if this type represents every value exactly,
    else float64."""
    weights_version: Array
    """Index into `versions`, -1 for a token that was not sampled; int16, or int32 for more than 32,767 versions."""
    segment_offsets: Array
    """Index of the first token of each segment, and at the end the number of tokens."""
    segment_prompt_length: Array
    segment_json: Array
    segment_json_offsets: Array
    turn_segment: Array
    """Segment of each turn, as an index among the segments of the turn's sample."""
    turn_prompt_length: Array
    turn_response_length: Array
    turn_json: Array
    turn_json_offsets: Array
    sample_segment_offsets: Array
    sample_turn_offsets: Array
    sample_json: Array
    sample_json_offsets: Array
    versions: tuple[str, ...] = ()
    """Names of the weights versions to which `weights_version` refers."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """JSON about the whole file, such as the groups of its samples."""

    def __len__(self) -> int:
        return len(self.sample_json_offsets) - 1

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """All fields of each sample except `segments` and `turns`: id, status, reward, metrics, task and so on."""
        return [from_json(text) for text in _texts(self.sample_json, self.sample_json_offsets)]

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Reward of each sample; NaN for a sample without a reward."""
        return np.array([sample["reward"] for sample in self.samples], np.float64)

    @cached_property
    def turn_rewards(self) -> NDArray[np.float64]:
        """Reward of each turn from the task's environment; NaN for a turn without a reward."""
        turns = (from_json(text) for text in _texts(self.turn_json, self.turn_json_offsets))
        return np.array([turn.get("reward") for turn in turns], np.float64)

    def trajectories(self) -> list[Trajectory]:
        """Return the samples as trajectories, with lists of Python numbers. Raises ValueError for samples of another kind."""
        return self.read(Trajectory)

    def read(self, model: type[R], extra: Literal["ignore"] | None = None) -> list[R]:
        """Return the samples as objects of `model`. `extra="ignore"`: ignore fields of a newer release. Raises ValueError."""
        # A segment is validated without its tokens. These are valid already, and pydantic would check every token again.
        empty: dict[str, list[Any]] = {name: [] for name in _TOKEN_FIELDS}
        segments = [Segment.model_validate({**found, **empty}, extra=extra) for found in self._segments()]
        turns = [Turn.model_validate(found, extra=extra) for found in self.turns()]
        samples = [model.model_validate({**found, "segments": [], "turns": []}, extra=extra) for found in self.samples]
        whole = [evolve(sample, **parts) for sample, parts in zip(samples, self._parts(segments, turns), strict=True)]
        # Tokens are filled in after all objects exist. While objects are created, Python's garbage collector runs, and each
        # run would read every element of the lists. The lists go into the frozen segments as they are: to copy them
        # would take a quarter of this method's time.
        for segment, tokens in zip(segments, self._tokens(), strict=True):
            vars(segment).update(tokens)
        return whole

    def documents(self) -> list[dict[str, Any]]:
        """Return the samples as JSON objects."""
        segments = [{**tokens, **found} for tokens, found in zip(self._tokens(), self._segments(), strict=True)]
        parts = self._parts(segments, self.turns())
        return [{**sample, **part} for sample, part in zip(self.samples, parts, strict=True)]

    def _tokens(self) -> Iterator[dict[str, list[Any]]]:
        """Yield the fields of each segment that have one value for each token, as lists."""
        names = (*self.versions, None)  # the index -1 gives None

        for start, end in pairwise(self.segment_offsets.tolist()):
            mask, logprobs = self.loss_mask[start:end], self.logprobs[start:end].tolist()
            for first, last in _runs(mask):
                if not mask[first]:
                    logprobs[first:last] = [None] * (last - first)
            yield {
                "token_ids": self.token_ids[start:end].tolist(),
                "loss_mask": _spread(mask, int),
                "logprobs": logprobs,
                "weights_version": _spread(self.weights_version[start:end], names.__getitem__),
            }

    def _segments(self) -> list[dict[str, Any]]:
        texts = _texts(self.segment_json, self.segment_json_offsets)
        lengths = self.segment_prompt_length.tolist()
        return [{"prompt_length": length, **from_json(text)} for length, text in zip(lengths, texts, strict=True)]

    def turns(self) -> list[dict[str, Any]]:
        """Return the turns of all samples as JSON objects."""
        numbers = zip(
            self.turn_segment.tolist(),
            self.turn_prompt_length.tolist(),
            self.turn_response_length.tolist(),
            _texts(self.turn_json, self.turn_json_offsets),
            strict=True,
        )
        return [
            {"segment": at, "prompt_length": prompt, "response_length": response, **from_json(text)}
            for at, prompt, response, text in numbers
        ]

    def _parts(self, segments: list[Any], turns: list[Any]) -> Iterator[dict[str, list[Any]]]:
        """Yield the segments and turns of each sample."""
        for segment_range, turn_range in zip(
            pairwise(self.sample_segment_offsets.tolist()), pairwise(self.sample_turn_offsets.tolist()), strict=True
        ):
            yield {"segments": segments[slice(*segment_range)], "turns": turns[slice(*turn_range)]}

    def part(self, first: int, end: int) -> Columns:
        """Return the samples from index `first` up to, but not including, `end`, with an empty `about`. The arrays share
        memory with these."""
        ranges: dict[str, list[int]] = {
            "sample": [first, end],
            "segment": self.sample_segment_offsets[[first, end]].tolist(),
            "turn": self.sample_turn_offsets[[first, end]].tolist(),
        }

        def cut(name: str) -> Array:
            array: Array = getattr(self, name)
            start, stop = ranges["segment" if name in _TOKEN_FIELDS else name.partition("_")[0]]
            if name.endswith("offsets"):
                found: Array = array[start : stop + 1] - array[start]
                return found
            if name in _TOKEN_FIELDS or name.endswith("json"):
                offsets = self.segment_offsets if name in _TOKEN_FIELDS else getattr(self, f"{name}_offsets")
                start, stop = offsets[[start, stop]].tolist()
            return array[start:stop]

        return Columns(**{name: cut(name) for name in _ARRAYS}, versions=self.versions, about={})

    def with_samples(self, samples: Sequence[Mapping[str, Any]]) -> Columns:
        """Return a copy whose property `samples` has these values, and whose `about` is empty. Segments and turns stay
        the same."""
        texts, offsets = _packed(json.dumps(sample).encode() for sample in samples)
        return replace(self, sample_json=texts, sample_json_offsets=offsets, about={})

    def to_bytes(self) -> bytes:
        """Return the safetensors file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        about = json.dumps(dict(self.about))
        metadata = {"form": FORM, "version": str(VERSION), "versions": json.dumps(self.versions), "about": about}
        return write_arrays(arrays, metadata)


_ARRAYS = [f.name for f in fields(Columns) if f.name not in ("versions", "about")]


def columns_of(results: Sequence[Outcome], about: Mapping[str, Any] | None = None) -> Columns:
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
        token_ids=_joined((_token_ids(s.token_ids) for s in segments), np.int32),
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
    """Return one file with the samples of all parts, in order. The `about` of each part is dropped."""
    if len(parts) == 1:
        return replace(parts[0], about=about or {})
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
"""Array -> its narrowest type. Any other array is int64, except `weights_version`, whose type `join` chooses."""


def encode(results: Sequence[Outcome], about: Mapping[str, Any] | None = None) -> bytes:
    """Write trajectories or outcomes as one file, without loss."""
    return columns_of(results, about).to_bytes()


def decode(data: bytes | bytearray | memoryview) -> Columns:
    """Read a file. The arrays share the memory of `data`; they are writable if `data` is a bytearray. Raises ValueError."""
    try:
        arrays, metadata = read_arrays(data, _ARRAYS)
        if metadata.get("form") != FORM or int(metadata["version"]) > VERSION:
            raise ValueError(f"its form is {metadata.get('form')!r}, version {metadata.get('version')!r}")
        versions = tuple(str(version) for version in json.loads(metadata["versions"]))
        columns = Columns(**arrays, versions=versions, about=json.loads(metadata["about"]))
        _check(columns)
        return columns
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"this is not a columns file that this release reads: {error}") from None


def _check(columns: Columns) -> None:
    """Check lengths, offsets and types, so that a damaged file does not give wrong tokens. Raises ValueError."""
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


# functions that make or read one array


def _token_ids(values: Sequence[int]) -> Array:
    try:
        return np.frombuffer(struct.pack(f"<{len(values)}i", *values), np.dtype("<i4"))  # half the time of np.array
    except struct.error:
        return _integers(values, np.int32)


def _integers(values: Sequence[int], smallest: DTypeLike) -> Array:
    try:
        return np.array(values, smallest)
    except OverflowError:
        return np.array(values, np.int64)


def _mask(values: Sequence[int]) -> Array:
    try:
        return np.frombuffer(bytes(values), np.uint8)  # this takes a third of the time of np.array
    except ValueError:  # a number does not fit into a byte
        return np.array(values, np.int64)


def _logprobs(values: Sequence[float | None], mask: Array) -> Array:
    wide = np.zeros(len(values), np.float64)
    for start, end in _runs(mask != 0):
        if mask[start]:  # struct takes half the time of np.array
            wide[start:end] = np.frombuffer(struct.pack(f"<{end - start}d", *values[start:end]), np.dtype("<f8"))
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    return narrow if ((narrow == wide) | np.isnan(wide)).all() else wide


def _indices(values: Sequence[str | None], mask: Array, versions: dict[str | None, int]) -> Array:
    """Return the index of each token's version, and add new versions to `versions`.

    Most runs of sampled tokens have only one version. `count` takes a tenth of the time of a look-up for each token.
    """
    indices = np.full(len(values), -1, np.int32)
    for start, end in _runs(mask != 0):
        if mask[start]:
            own = values[start:end]
            same = own.count(own[0]) == len(own)
            for version in own[:1] if same else own:
                versions.setdefault(version, len(versions) - 1)
            indices[start:end] = versions[own[0]] if same else [versions[version] for version in own]
    return indices.astype(np.int16 if len(versions) <= 1 << 15 else np.int32)


def _spread(numbers: Array, value: Callable[[int], T]) -> list[T]:
    """Return the value for each number. A run of equal numbers is looked up once, because most neighbours are equal."""
    found: list[T] = []
    for start, end in _runs(numbers):
        found += [value(int(numbers[start]))] * (end - start)
    return found


def _runs(numbers: Array) -> Iterable[tuple[int, int]]:
    """Return start and end of each run of equal numbers."""
    edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return pairwise([0, *edges.tolist(), len(numbers)]) if len(numbers) else ()


def _renumbered(indices: Array, numbers: Sequence[int]) -> Array:
    if list(numbers) == list(range(len(numbers))):
        return indices
    return _integers([*numbers, -1], np.int16)[indices]  # the index -1 gives the last number, -1


def _joined(arrays: Iterable[Array], smallest: DTypeLike) -> Array:
    """Join arrays into one array of the widest type; an array of type `smallest` if there are none."""
    found = list(arrays)
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, smallest), *found])


def _offsets(lengths: Iterable[int]) -> Array:
    return np.array(list(accumulate(lengths, initial=0)), np.int64)  # for few numbers np.cumsum takes ten times as long


def _joined_offsets(arrays: Sequence[Array]) -> Array:
    ends = _offsets(int(array[-1]) for array in arrays)
    return np.concatenate([np.zeros(1, np.int64), *(a[1:] + end for a, end in zip(arrays, ends[:-1], strict=True))])


def _packed(texts: Iterable[bytes]) -> tuple[Array, Array]:
    found = list(texts)
    return np.frombuffer(b"".join(found), np.uint8), _offsets(map(len, found))


def _texts(packed: Array, offsets: Array) -> Iterable[bytes]:
    whole = packed.tobytes()
    return (whole[start:end] for start, end in pairwise(offsets.tolist()))
