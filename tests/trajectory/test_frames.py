from __future__ import annotations

import pytest

from rollyard.trajectory.frames import framed, unframed


def test_frames_are_read_as_they_were_written() -> None:
    parts = [b"one", b"", b"x" * 70_000]
    assert unframed(b"".join(map(framed, parts))) == parts
    assert unframed(b"") == []


@pytest.mark.parametrize("body", [framed(b"one")[:-1], framed(b"one") + b"\x01", b"\xff" * 8])
def test_an_incomplete_frame_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="incomplete"):
        unframed(body)
