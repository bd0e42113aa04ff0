"""Frames: several byte strings in one body, each preceded by its length in eight bytes (little-endian)."""

from __future__ import annotations

LENGTH_BYTES = 8


def framed(data: bytes) -> bytes:
    """Return one frame. In a stream an empty frame only keeps the connection alive."""
    return frame_head(len(data)) + data


def frame_head(length: int) -> bytes:
    """Return what precedes the data of a frame."""
    return length.to_bytes(LENGTH_BYTES, "little")


def unframed(body: bytes) -> list[bytes]:
    """Return the data of all frames of a body. Raises ValueError if the last frame is incomplete."""
    found, at = [], 0
    while at < len(body):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(body[at:start], "little")
        if at > len(body):
            raise ValueError("the last frame is incomplete")
        found.append(body[start:at])
    return found
