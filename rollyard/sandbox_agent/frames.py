"""Frames on a Unix socket. A frame begins with the length of its header and the length of its body (4 bytes each,
big-endian). The header follows in JSON, then the body in raw bytes.

The output of a tool, and a file that is read or written whole, are sent as a body, so their bytes need no escaping.
"""

from __future__ import annotations

import _thread
import struct

from rollyard.sandbox_agent import light_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any, TypeAlias

Header: TypeAlias = "dict[str, Any]"
PROTOCOL = 2
"""Version in the hello message. Increase the version if an old peer could misread new frames."""

LENGTHS = struct.Struct("!II")


class FrameBuffer:
    """Bytes of a peer that cannot be trusted, up to the next whole frame. Not more than one frame is kept, as far as its
    bytes have come."""

    def __init__(self, most: int) -> None:
        """`most`: greatest length of a frame."""
        self._most = most
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> tuple[Any, bytes] | None:
        """Return the next frame; None if it is not whole. Raises ValueError for a frame that is too long or not JSON."""
        if len(self._bytes) < LENGTHS.size:
            return None
        head, body = LENGTHS.unpack_from(self._bytes)
        end = LENGTHS.size + head + body
        if end > self._most:
            raise ValueError(f"the frame has more than {self._most} bytes")
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[LENGTHS.size : end])
        del self._bytes[:end]
        return light_json.decode(frame[:head]), frame[head:]


class Stream:
    """One end of a socket. Any thread may call `send`."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._sending = _thread.allocate_lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, header: Header, body: bytes = b"") -> None:
        head = light_json.encode(header)
        with self._sending:
            self._sock.sendall(LENGTHS.pack(len(head), len(body)) + head + body)

    def receive(self) -> tuple[Header, bytes] | None:
        """Return the next frame; None if the other end is closed. Raises ValueError if the header is not JSON."""
        lengths = self._exactly(LENGTHS.size)
        if lengths is None:
            return None
        head_length, body_length = LENGTHS.unpack(lengths)
        frame = self._exactly(head_length + body_length)
        if frame is None:
            return None
        header: Header = light_json.decode(frame[:head_length])
        return header, bytes(frame[head_length:])

    def close(self) -> None:
        self._sock.close()

    def _exactly(self, count: int) -> memoryview | None:
        buffer = bytearray(count)
        view, filled = memoryview(buffer), 0
        while filled < count:
            try:
                received = self._sock.recv_into(view[filled:])
            except ConnectionError:
                return None
            if received == 0:
                return None
            filled += received
        return view
