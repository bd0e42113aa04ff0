"""The ground of all messages, and who sends them.

Messages only grow: fields are added with defaults, unknown fields and unknown message types are ignored on arrival, so
that an old node agent outlives a new server.
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
    """Who speaks: one process in one run of one job of one allocation. The first that registers is the one."""

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
