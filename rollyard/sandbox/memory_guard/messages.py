"""Messages between the node agent and its memory guard: a JSON list of objects in each packet."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 1 << 16
_IN_ONE_PACKET = 256
"""Greatest number of messages in one packet. A socket holds about 270 packets, and each sandbox has a message."""


def send(sock: socket.socket, *messages: dict[str, Any]) -> None:
    for first in range(0, len(messages), _IN_ONE_PACKET):
        sock.send(json.dumps(messages[first : first + _IN_ONE_PACKET], separators=(",", ":")).encode())


def received(sock: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield the messages that have arrived; never blocks. Raises EOFError if the other side is gone."""
    while True:
        try:
            packet = sock.recv(MAX_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            raise EOFError from None
        if not packet:
            raise EOFError
        yield from json.loads(packet)
