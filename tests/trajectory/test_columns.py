"""Results as arrays: nothing is lost, other programs can read the file, and damage is found."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors_numpy

from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Outcome, Segment, Timings, Trajectory, Turn
from rollyard.trajectory.columns import Columns, columns_of, decode, encode, join
from tests.support.recorded import lost_fields
from tests.wire.record import COLUMNS, FOLDER
from tests.wire.samples import OUTCOME

texts = st.text(max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.dictionaries(texts, finite, max_size=2)
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | texts
json_objects = st.dictionaries(texts, leaves | st.lists(leaves, max_size=2), max_size=2)
lengths = st.integers(-(2**63), 2**63 - 1)
logprobs = st.floats(allow_nan=False) | st.floats(allow_nan=False, width=32)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    mask = draw(st.lists(st.sampled_from([0, 1]) | st.integers(-3, 300), max_size=6))
    return Segment(
        token_ids=[draw(st.integers(0, 200_000) | lengths) for _ in mask],
        loss_mask=mask,
        logprobs=[draw(logprobs) if m else None for m in mask],
        weights_version=[draw(st.sampled_from(["v1", "v2", "v3"])) if m else None for m in mask],
        prompt_length=draw(lengths),
        extras=draw(json_objects),
    )


turns = st.builds(
    Turn,
    segment=lengths,
    prompt_length=lengths,
    response_length=lengths,
    text=texts,
    finish_reason=texts,
    tool_calls=st.lists(json_objects, max_size=2),
    tool_results=st.lists(texts, max_size=2),
    timings=numbers,
    observation=st.none() | texts,
    reward=st.none() | finite,
    constraint=st.none() | texts,
)
trajectories = st.sampled_from([status for status in Status if status.terminal]).flatmap(
    lambda status: st.builds(
        Trajectory,
        id=texts,
        group=st.none() | texts,
        sample_index=lengths,
        attempt=lengths,
        status=st.just(status),
        reward=st.none() | finite if status.scored else st.none(),
        metrics=numbers,
        task=json_objects.map(lambda more: Task(**{f"x{name}": value for name, value in more.items()}, kind="math")),
        segments=st.lists(segments(), max_size=3),
        turns=st.lists(turns, max_size=3),
        timings=st.builds(Timings, run=st.none() | finite),
        breaks=st.dictionaries(texts, lengths, max_size=2),
        endpoint=st.none() | texts,
        node=st.none() | texts,
        error=st.none()
        | st.builds(RolloutError, stage=st.none() | st.sampled_from(Stage), reason=texts, message=texts),
    )
)


@settings(max_examples=50, deadline=None)
@given(st.lists(trajectories, max_size=3))
def test_nothing_is_lost(given: list[Trajectory]) -> None:
    columns = decode(encode(given))
    assert columns.trajectories() == given
    assert columns.documents() == [found.model_dump(mode="json") for found in given]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(trajectories, max_size=2), max_size=3))
def test_files_can_be_joined(given: list[list[Trajectory]]) -> None:
    joined = join([decode(encode(part)) for part in given], {"cursor": 3})
    again = decode(joined.to_bytes())
    assert again.trajectories() == joined.trajectories() == [one for part in given for one in part]
    assert again.about == {"cursor": 3}
    ends = accumulate(map(len, given), initial=0)
    for part, (first, end) in zip(given, pairwise(ends), strict=True):
        assert decode(again.part(first, end).to_bytes()).trajectories() == part


def test_a_result_of_a_node_agent_is_kept_in_full() -> None:
    columns = decode(encode([OUTCOME]))
    assert columns.documents() == [json.loads(OUTCOME.model_dump_json())]
    assert columns.read(Outcome) == [OUTCOME]


def test_files_of_earlier_versions_are_read_in_full() -> None:
    told = json.loads(OUTCOME.model_dump_json())
    assert COLUMNS.exists(), "python -m tests.wire.record"
    for path in FOLDER.glob("columns.*.safetensors"):
        columns = decode(path.read_bytes())
        (found,) = columns.documents()
        assert lost_fields(found, told) == []
        assert found.keys() >= {"status", "reward", "metrics", "segments", "turns", "timings", "breaks", "error"}
        for part in ("segments", "turns"):
            assert found[part][0].items() <= told[part][0].items()
        assert columns.about == {"artifact": {"answer": "2"}}


def test_another_program_reads_the_arrays() -> None:
    found = safetensors_numpy.load(encode([OUTCOME, OUTCOME]))
    assert found["token_ids"].tolist() == [1, 2, 3, 1, 2, 3]
    assert found["loss_mask"].tolist() == [0, 1, 1, 0, 1, 1]
    assert found["logprobs"].tolist() == [0, -0.5, -0.25, 0, -0.5, -0.25]
    assert found["weights_version"].tolist() == [-1, 0, 0, -1, 0, 0]
    assert found["segment_offsets"].tolist() == [0, 3, 6]
    assert found["sample_segment_offsets"].tolist() == [0, 1, 2]
    assert json.loads(bytes(found["sample_json"][: found["sample_json_offsets"][1]]))["reward"] == 1.0


def test_numbers_are_as_small_as_they_may_be() -> None:
    small = columns_of([OUTCOME])
    kinds = [found.dtype for found in (small.token_ids, small.loss_mask, small.logprobs, small.weights_version)]
    assert kinds == [np.int32, np.uint8, np.float32, np.int16]
    (segment,) = OUTCOME.segments
    wide = columns_of(
        [OUTCOME.model_copy(update={"segments": [segment.model_copy(update={"logprobs": [None, -0.1, 1e300]})]})]
    )
    assert wide.logprobs.dtype == np.float64
    assert join([small, wide]).logprobs.tolist() == [0, -0.5, -0.25, 0, -0.1, 1e300]


def test_versions_of_joined_files_keep_their_names() -> None:
    def of(*versions: str) -> Columns:
        (segment,) = OUTCOME.segments
        changed = segment.model_copy(update={"weights_version": [None, *versions]})
        return columns_of([OUTCOME.model_copy(update={"segments": [changed]})])

    joined = join([of("v2", "v3"), of("v3", "v1"), of("v1", "v1")])
    assert joined.versions == ("v2", "v3", "v1")
    assert joined.weights_version.tolist() == [-1, 0, 1, -1, 1, 2, -1, 2, 2]


def test_rewards_are_an_array() -> None:
    failed = Outcome(status=Status.FAILED)
    assert np.array_equal(columns_of([OUTCOME, failed]).rewards, [1.0, np.nan], equal_nan=True)


def test_arrays_of_a_bytearray_can_be_written() -> None:
    columns = decode(bytearray(encode([OUTCOME])))
    columns.logprobs[columns.loss_mask == 1] -= 1
    assert columns.logprobs.tolist() == [0, -1.5, -1.25]


def damaged(**changes: list[int]) -> bytes:
    arrays: dict[str, Any] = {name: np.array(numbers) for name, numbers in changes.items()}
    return replace(columns_of([OUTCOME]), **arrays).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        encode([OUTCOME])[:-1],
        encode([OUTCOME])[:200],
        struct.pack("<Q", 1 << 40) + b"{}",
        encode([OUTCOME]).replace(b'"version":"1"', b'"version":"2"'),
        encode([OUTCOME]).replace(b'"token_ids"', b'"token_odd"'),
        encode([OUTCOME]).replace(b'"dtype":"I32"', b'"dtype":"F32"'),
        damaged(segment_offsets=[0, 2]),
        damaged(segment_offsets=[0, 4]),
        damaged(segment_offsets=[1, 3]),
        damaged(sample_turn_offsets=[0]),
        damaged(loss_mask=[0, 1]),
        damaged(loss_mask=[1, 1, 1]),
        damaged(weights_version=[-1, 0, 1]),
        damaged(weights_version=[-2, 0, 0]),
        damaged(turn_json_offsets=[0, 1]),
        damaged(turn_segment=[0, 0]),
    ],
)
def test_damage_is_found(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a columns file"):
        decode(data)
