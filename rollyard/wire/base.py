"""Base class of all messages, the identity of a sender, and the version of the protocol.

Messages only grow: new fields have defaults, and receivers ignore unknown fields and unknown message types. So an old
node agent or engine can finish its work under a new server. A new field does not change PROTOCOL. Unknown fields are
errors only in what users write: `agent`, `sampling` and `budgets` of a lease, and the spec of an engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field

from rollyard.kinds.base import WireModel

PROTOCOL = 5
"""Version of the protocol. It grows only with a change that an older process would misunderstand."""
MIN_PROTOCOL = 5
"""Oldest version that a server accepts; PROTOCOL is the newest."""

Count = Annotated[int, AfterValidator(lambda count: max(0, min(count, 1 << 53)))]
"""Number that a process counted. What it cannot have counted is made possible, so that sums of it can be shown."""
StoredCount = Annotated[int, Field(ge=0, le=1 << 40)]
"""Number in a message that is stored. A message with a number that nobody can have counted is refused."""
StoredSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class WireMessage(WireModel):
    """Message of a process of ours, which may be of another release. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Parse a message. Unknown fields are ignored, in nested objects too. Raises ValueError."""
        return cls.model_validate(data, extra="ignore")


class Identity(WireMessage):
    """Sender of a message: one process in one run of an allocation's job.

    The first process that registers is accepted. Further processes of the same allocation are refused.
    """

    allocation: str
    namespace: str
    uid: str
    job_id: str
    restart_count: int = 0
    instance: str
    """Random id that the process makes at its start."""
    node: str
    protocol: int = PROTOCOL


def protocol_refusal(hello: Any) -> str | None:
    """Return why this server refuses a process. `hello`: the first message of the process, as parsed JSON.

    Return None if the server accepts the protocol, or if the message has no protocol. Other fields are not read, because
    another release may send them in another form. The text has at most 120 bytes, because a close frame of a WebSocket
    carries at most 123.
    """
    identity = hello.get("identity") if isinstance(hello, dict) else None
    number = identity.get("protocol") if isinstance(identity, dict) else None
    if not isinstance(number, int) or MIN_PROTOCOL <= number <= PROTOCOL:
        return None
    age, side = ("old", "on the nodes") if number < MIN_PROTOCOL else ("new", "where the server runs")
    return f"protocol {number} of this job is too {age}; the server reads {MIN_PROTOCOL} to {PROTOCOL}: update Rollyard {side}"
