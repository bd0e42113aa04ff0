"""Messages between a person's client and a node agent that is attached to one rollout: for a program in the rollout's
sandbox, and for files to and from the sandbox. The server passes the messages on.

Both ends have a WebSocket of their own to the server. Data is sent in binary messages: one byte with the channel, then
the data. Everything else is JSON in text messages. Each end sends at most WINDOW bytes of a channel that the other end has
not yet acknowledged, so nobody between the ends has to keep more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, cast

from pydantic import Field
from pydantic_core import from_json

from rollyard.wire.base import WireMessage

STDIN, STDOUT, STDERR = 0, 1, 2
"""Channels, with the numbers of Kubernetes' remote commands."""
WINDOW = 256 << 10
CHUNK = 32 << 10
"""Greatest number of data bytes in one message."""
MAX_MESSAGE_BYTES = 1 << 20
HEARTBEAT_SECONDS = 20.0
"""Time between two pings. An end that does not answer counts as gone after half of this time."""
MAX_COMMAND_CHARS = 128 << 10


class AttachKind(StrEnum):
    """Purpose of an attachment. A node agent lists the kinds that it knows in its `Hello`."""

    EXEC = "exec"
    COPY_OUT = "copy_out"
    COPY_IN = "copy_in"
    TURNS = "turns"
    """The turns of the present attempt: lines of JSON with `index` and `turn`, on standard output. A turn is sent again when
    its tools have answered. This kind needs no sandbox, and changes nothing."""


class Start(WireMessage):
    """First message of the client."""

    type: Literal["start"] = "start"
    kind: AttachKind
    command: list[str] = []
    """Words of the command, for EXEC."""
    path: str = ""
    """File or folder in the sandbox, for COPY_OUT and COPY_IN."""
    tty: bool = False
    rows: int = Field(default=24, ge=1, le=1000)
    columns: int = Field(default=80, ge=1, le=1000)
    term: str = ""
    """Type of the client's terminal (TERM)."""
    eval: bool = False
    """True: the sandbox of EVAL is allowed, with the hidden tests in it."""
    follow: bool = False
    """For TURNS. True: send turns until RUN ends. False: send the turns so far."""
    output: bool = False
    """For TURNS. True: send also what the command of `type: command` prints, as lines of JSON with `output`."""

    @property
    def words(self) -> str:
        """Command as a person reads it, for the rollout's history."""
        return " ".join(self.command) if self.kind is AttachKind.EXEC else self.path


class WindowSize(WireMessage):
    """The client's terminal has a new size."""

    type: Literal["window_size"] = "window_size"
    rows: int = Field(ge=1, le=1000)
    columns: int = Field(ge=1, le=1000)


class EndInput(WireMessage):
    """End of the standard input."""

    type: Literal["end_input"] = "end_input"


class SendSignal(WireMessage):
    """Signal for the program's process group."""

    type: Literal["send_signal"] = "send_signal"
    number: int = Field(ge=1, le=31)


class Acknowledge(WireMessage):
    """This number of further bytes of a channel was used up."""

    type: Literal["acknowledge"] = "acknowledge"
    channel: int
    bytes: int = Field(ge=0)


class Ready(WireMessage):
    """First message of a node agent: it can begin."""

    type: Literal["ready"] = "ready"


class Exited(WireMessage):
    """Last message of a node agent: the program has ended."""

    type: Literal["exited"] = "exited"
    code: int
    """Exit code; 128 and the signal's number after a signal, as in a shell."""


class Refused(WireMessage):
    """Last message, of a node agent or of the server: the attachment cannot begin, or cannot go on."""

    type: Literal["refused"] = "refused"
    code: int
    """HTTP code of the error."""
    reason: str
    message: str
    """Sentence that says what one can do."""


Control = Start | WindowSize | EndInput | SendSignal | Acknowledge | Ready | Exited | Refused
_KNOWN: dict[str, type[WireMessage]] = {
    "start": Start,
    "window_size": WindowSize,
    "end_input": EndInput,
    "send_signal": SendSignal,
    "acknowledge": Acknowledge,
    "ready": Ready,
    "exited": Exited,
    "refused": Refused,
}


def control(text: str) -> Control | None:
    """Parse a text message. Return None for an unknown type. Raises ValueError for malformed data."""
    data = from_json(text, allow_inf_nan=False)
    model = _KNOWN.get(str(data.get("type"))) if isinstance(data, dict) else None
    message: Control | None = cast(Any, model).from_wire(data) if model is not None else None
    return message


def eval_refusal(id: str) -> str:
    """Return why the sandbox of EVAL is closed to an attachment without `Start.eval`."""
    return (
        f"rollout {id} is in EVAL: its sandbox has the hidden tests, and a change in it would change the reward; "
        "`--eval` opens it all the same"
    )
