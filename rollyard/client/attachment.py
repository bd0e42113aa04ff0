"""A person's end of an attachment: a program in the sandbox of a running rollout, or files from it or to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from pydantic_core import from_json

from rollyard.client.attached_socket import AttachedSocket
from rollyard.client.rollout_path import rollout_path
from rollyard.client.server_connection import ServerConnection
from rollyard.core.errors import BadRequest, Unavailable, connection_failure_text, error_from_reason
from rollyard.trajectory import Turn
from rollyard.wire.attach import (
    HEARTBEAT_SECONDS,
    MAX_MESSAGE_BYTES,
    STDIN,
    EndInput,
    Exited,
    Refused,
    SendSignal,
    Start,
    WindowSize,
)

LOST = "the connection to the server is lost, and the program in the sandbox is ended; run the command again"


class Attachment:
    """One program in a sandbox. `code` is set when the program has ended."""

    def __init__(self, socket: AttachedSocket) -> None:
        self._socket = socket
        self.code: int | None = None
        """Exit code; 128 and the signal's number after a signal."""

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield pairs (channel, data) until the program has ended. Every piece must be acknowledged with `used`.

        Raises an ApiError with the reason if the program was refused, or if its sandbox is gone. Raises Unavailable if
        the connection is lost.
        """
        async for message in self._socket.messages():
            match message:
                case (channel, data):
                    yield channel, data
                case Exited(code=code):
                    self.code = code
                    return
                case Refused(code=code, reason=reason, message=text):
                    raise error_from_reason(code, reason, text)
        raise Unavailable(LOST)

    async def used(self, channel: int, data: bytes) -> None:
        """Acknowledge a piece of output, so that more of it is sent."""
        await self._socket.acknowledge(channel, len(data))

    async def write(self, data: bytes) -> None:
        """Send input, as fast as the program reads it. Raises ConnectionError if the connection is lost."""
        await self._socket.send_data(STDIN, data)

    async def end_input(self) -> None:
        await self._socket.send(EndInput())

    async def resize(self, rows: int, columns: int) -> None:
        await self._socket.send(WindowSize(rows=max(1, min(rows, 1000)), columns=max(1, min(columns, 1000))))

    async def signal(self, number: int) -> None:
        await self._socket.send(SendSignal(number=number))


async def turns(attached: Attachment) -> AsyncIterator[tuple[int, Turn] | str]:
    """Yield pairs (index, turn) of an attachment of kind TURNS, and texts that a command printed. Raises the errors of
    `output`."""
    rest = b""
    async for channel, data in attached.output():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            found = from_json(line)
            if "turn" in found:
                yield found["index"], Turn.model_validate(found["turn"], extra="ignore")
            elif "output" in found:
                yield str(found["output"])
        await attached.used(channel, data)


@asynccontextmanager
async def attach(server: ServerConnection, id: str, namespace: str | None, start: Start) -> AsyncIterator[Attachment]:
    """Attach to a rollout. Leaving the block ends the program. Raises ApiError; Unavailable if the server cannot be
    reached."""
    try:
        first = start.model_dump_json()
    except ValueError:
        raise BadRequest(
            f"{start.words!r} is not UTF-8, so it cannot be sent; copy its folder, or use a pattern of the shell in the sandbox"
        ) from None
    try:
        async with server.web_socket(
            rollout_path(id) + "/attach", server.query(namespace), HEARTBEAT_SECONDS, MAX_MESSAGE_BYTES
        ) as socket:
            await socket.send_str(first)
            yield Attachment(AttachedSocket(socket))
    except aiohttp.WSServerHandshakeError as error:
        raise error_from_reason(error.status, "", f"the server answered {error.status}: {error.message}") from None
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise Unavailable(
            f"no answer from the server ({connection_failure_text(error)}); is `rollyard serve` running?"
        ) from None
    except (aiohttp.ClientError, ConnectionError) as error:
        raise Unavailable(f"{LOST} ({connection_failure_text(error)})") from None
