"""Base of all messages, the identity of their senders, and the versions that work together.

Messages only grow: new fields have defaults, and receivers ignore unknown fields and unknown message types. So an old
node agent or engine finishes its work under a new server. A new field leaves PROTOCOL as it is.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

PROTOCOL = 2
"""Grows only with a change that an older process would misunderstand; a server refuses a newer one."""
MIN_PROTOCOL = 2
"""Oldest protocol that a server works with."""


class WireMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Read from the wire: fields that are unknown are ignored, at every depth. Raises ValueError."""
        return cls.model_validate(data, extra="ignore")


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


def protocol_refusal(hello: Any) -> str | None:
    """The reason why a process with this first message cannot work under this server; None where it can, or does not say.

    Only the number is read, since the message around it may have another shape. At most 120 bytes: a WebSocket's close
    frame holds no more.
    """
    identity = hello.get("identity") if isinstance(hello, dict) else None
    number = identity.get("protocol") if isinstance(identity, dict) else None
    if not isinstance(number, int) or MIN_PROTOCOL <= number <= PROTOCOL:
        return None
    age, side = ("old", "on the nodes") if number < MIN_PROTOCOL else ("new", "where the server runs")
    return f"protocol {number} of this job is too {age}; the server reads {MIN_PROTOCOL} to {PROTOCOL}: update Rollyard {side}"
