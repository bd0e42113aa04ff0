"""Frames: several byte strings in one body, each preceded by its length in eight bytes (little-endian). Seals: bytes behind
their digest, which shows whether they arrive as they were sent."""

from __future__ import annotations

import hashlib

LENGTH_BYTES = 8
DIGEST_CHARS = 64


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


def sealed(data: bytes) -> bytes:
    """Return the data behind its digest, which has no line end."""
    return hashlib.sha256(data).hexdigest().encode() + data


def unsealed(body: bytes) -> bytes:
    """Return the data behind a digest. Raises ValueError if it is not what was sealed."""
    data = body[DIGEST_CHARS:]
    if sealed(data) != body:
        raise ValueError("it was damaged on its way: its digest does not match")
    return data
