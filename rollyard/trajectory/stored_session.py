"""Stored sessions of external agents, and the interface of the store that keeps them. The gateway writes and reads the
contents; to the store, a call is bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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


class SessionStore(Protocol):
    """Store of sessions. What a method writes is on disk when the method returns. All methods raise Unavailable."""

    async def load(self) -> tuple[list[StoredSession], dict[str, str]]:
        """Return the sessions in the order in which they were opened, and the ids of the last removed sessions, each with
        the reason."""

    async def add(self, session: StoredSession) -> None:
        """Store a new session. Storing it again changes nothing."""

    async def append(self, instance: str, calls: Sequence[StoredCallBytes], progress: SessionProgress) -> None:
        """Store calls. A call that is already stored stays as it is. If the session was removed, nothing is stored."""

    async def calls(self, instance: str) -> list[StoredCallBytes]:
        """Return the calls of a session in the order of their turns."""

    async def close(self, instance: str) -> None:
        """Store that the session takes no more calls."""

    async def remove(self, instance: str, why: str) -> None:
        """Delete a session with its calls, and keep the reason."""

    async def note(self, idle: Mapping[str, float], delivered: Sequence[tuple[str, int]]) -> None:
        """Store the seconds without use of sessions, and the turns (instance, turn) whose answers were delivered."""
