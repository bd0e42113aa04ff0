"""Base of all messages, and the identity of their senders.

Messages only grow: new fields have defaults, and receivers ignore unknown fields and unknown message types. So an old
node agent works with a new server.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

PROTOCOL = 1


class WireMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Read from the wire. Raises ValueError."""
        return cls.model_validate(data)


class Identity(WireMessage):
    """Sender of a message: one process in one run of one job of an allocation. Only the first process that registers counts."""

    allocation: str
    namespace: str
    uid: str
    job_id: str
    restart_count: int = 0
    instance: str
    """Random id of the process."""
    node: str
    pid: int = 0
    protocol: int = PROTOCOL
