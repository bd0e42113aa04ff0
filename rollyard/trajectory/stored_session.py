"""Stored sessions of external agents. The gateway writes and reads the contents; to the store, a call is bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionProgress:
    """Numbers of a session that change with its calls."""

    calls: int = 0
    tokens: int = 0
    truncated: bool = False
    endpoint: str = ""
    """Id of the model server that the session used last."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    instance: str
    """Random id of the session. Another session may later have the same `id`."""
    id: str
    namespace: str
    pool: str
    request: str
    """The `SessionRequest` as JSON."""
    created_at: float
    """Unix seconds."""
    model: str
    tokenizer: str
    """Folder of the tokenizer and chat template."""
    open: bool = True
    progress: SessionProgress = SessionProgress()
    idle_seconds: float = 0.0
    """Time without a call or read when the server last ran. The time in which no server ran does not count."""


@dataclass(frozen=True, slots=True)
class StoredCallBytes:
    turn: int
    """Index of the call's turn in its session."""
    body: bytes
    delivered: bool = False
    """Whether the caller surely got the answer."""
