"""Messages between the node agent and its memory guard: one JSON object a packet."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 1 << 16


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.send(json.dumps(message, separators=(",", ":")).encode())


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
        yield json.loads(packet)
