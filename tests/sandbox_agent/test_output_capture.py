from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.sandbox_agent.output_capture import OutputCapture


def test_short_output_is_whole_and_taken_once() -> None:
    capture = OutputCapture(limit=10)
    capture.feed(b"abc")
    capture.feed(b"defg")
    assert capture.pop() == b"abcdefg"
    assert capture.pop() == b""


def test_head_and_tail_of_long_output() -> None:
    capture = OutputCapture(limit=10)
    for letter in b"abcdefghijklmnopqrstuvwxyz":
        capture.feed(bytes([letter]))
    assert capture.pop() == b"abcde\n[16 bytes left out]\nvwxyz"


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=2, max_value=30))
def test_nothing_is_lost_or_made_up(chunks: list[bytes], limit: int) -> None:
    capture, whole, half = OutputCapture(limit), b"".join(chunks), limit // 2
    for chunk in chunks:
        capture.feed(chunk)
    taken = capture.pop()
    if len(whole) <= 2 * half:
        assert taken == whole
    else:
        assert taken == whole[:half] + f"\n[{len(whole) - 2 * half} bytes left out]\n".encode() + whole[-half:]


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=2, max_value=500))
def test_what_is_new_can_be_read_meanwhile(chunks: list[bytes], limit: int) -> None:
    capture, read, position = OutputCapture(limit), b"", 0
    for chunk in chunks:
        capture.feed(chunk)
        new, position = capture.after(position)
        read += new
    whole = b"".join(chunks)
    assert position == len(whole)
    assert capture.after(position) == (b"", position)
    if all(len(chunk) <= limit // 2 for chunk in chunks):
        assert read == whole


@pytest.mark.parametrize("size", [1 << 16, 1 << 12])
def test_memory_stays_bounded(size: int) -> None:
    capture = OutputCapture(limit=1 << 20)
    for _ in range(2000):
        capture.feed(b"y" * size)
        assert len(capture._tail) <= (1 << 20) + size
