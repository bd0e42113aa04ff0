"""Artifacts: what EVAL gets from RUN's sandbox, as bytes for the wire and the store, and as JSON for the API.

The bytes are frames: a name, `t` or `b`, and the content, for each part. So binary parts are stored as they are.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from pydantic import JsonValue

from rollyard.trajectory.frames import framed, unframed

Artifact = dict[str, str | bytes]
"""Name -> text or bytes: everything that EVAL gets from RUN's sandbox."""


def artifact_size(artifact: Artifact) -> int:
    """Return the length of all contents in bytes, of texts in UTF-8."""
    return sum(len(_content(part)) for part in artifact.values())


def pack(artifact: Artifact) -> bytes:
    parts = (
        (name.encode(), b"t" if isinstance(part, str) else b"b", _content(part)) for name, part in artifact.items()
    )
    return b"".join(framed(piece) for part in parts for piece in part)


def unpack(data: bytes) -> Artifact:
    """Raises ValueError for data that `pack` did not make."""
    frames = unframed(data)
    parts = zip(frames[::3], frames[1::3], frames[2::3], strict=True)
    return {name.decode(): content.decode() if form == b"t" else content for name, form, content in parts}


def to_json(artifact: Artifact) -> dict[str, JsonValue]:
    """Return texts as they are, and bytes as `{"base64": "..."}`."""
    return {
        name: part if isinstance(part, str) else {"base64": base64.b64encode(part).decode()}
        for name, part in artifact.items()
    }


def from_json(found: Mapping[str, str | dict[str, str]]) -> Artifact:
    return {name: part if isinstance(part, str) else base64.b64decode(part["base64"]) for name, part in found.items()}


def _content(part: str | bytes) -> bytes:
    return part.encode() if isinstance(part, str) else part
