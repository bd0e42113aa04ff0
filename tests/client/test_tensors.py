"""Columns as torch tensors: the same numbers, and no copy where none is needed."""

from __future__ import annotations

from rollyard.client.tensors import tensors
from rollyard.trajectory.columns import decode, encode
from tests.wire.samples import OUTCOME


def test_tensors_have_the_numbers_of_the_arrays() -> None:
    found = tensors(decode(encode([OUTCOME, OUTCOME])))
    assert found["token_ids"].tolist() == [1, 2, 3, 1, 2, 3]
    assert found["segment_offsets"].tolist() == [0, 3, 6]
    assert str(found["logprobs"].dtype) == "torch.float32"
    assert "turn_json" not in found


def test_arrays_that_can_be_written_are_shared() -> None:
    columns = decode(bytearray(encode([OUTCOME])))
    tensors(columns)["logprobs"].mul_(2)
    assert columns.logprobs.tolist() == [0, -1.0, -0.5]
