"""Base of all messages, the identity of their senders, and the versions that work together.

Messages only grow: new fields have defaults, and receivers ignore unknown fields and unknown message types. So an old
node agent or engine finishes its work under a new server. A new field does not change PROTOCOL.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

PROTOCOL = 2
"""Number that grows only with a change that an older process would misunderstand. A server refuses a newer number."""
MIN_PROTOCOL = 2
"""Oldest protocol that a server works with."""


class WireMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Parse a message. Unknown fields are ignored, at every depth. Raises ValueError."""
        return cls.model_validate(data, extra="ignore")


class Identity(WireMessage):
    """Sender of a message: one process in one run of an allocation's job. Only the first process that registers counts."""

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


def protocol_refusal(hello: Any) -> str | None:
    """Return why a process with this first message cannot work under this server; None if it can, or sends no number.

    Only the number is read, because the rest of the message may have another form. The text has at most 120 bytes,
    because a WebSocket's close frame has room for no more.
    """
    identity = hello.get("identity") if isinstance(hello, dict) else None
    number = identity.get("protocol") if isinstance(identity, dict) else None
    if not isinstance(number, int) or MIN_PROTOCOL <= number <= PROTOCOL:
        return None
    age, side = ("old", "on the nodes") if number < MIN_PROTOCOL else ("new", "where the server runs")
    return f"protocol {number} of this job is too {age}; the server reads {MIN_PROTOCOL} to {PROTOCOL}: update Rollyard {side}"
