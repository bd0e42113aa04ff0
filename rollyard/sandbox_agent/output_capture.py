"""Output of a tool in bounded memory: only the beginning and the end are kept."""

from __future__ import annotations

LIMIT = 1 << 20


class OutputCapture:
    """Keeps the first and the last `limit // 2` bytes that it gets."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # The tail is trimmed only at twice its final length, so that each byte is moved at most once.
        if len(self._tail) > 2 * self._half:
            self._trim()

    @property
    def total(self) -> int:
        """Number of bytes since the capture was last emptied, with those left out."""
        return len(self._head) + self._dropped + len(self._tail)

    def pop(self) -> bytes:
        """Return the kept output, and empty the capture. A line marks the place where bytes were left out."""
        self._trim()
        gap = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        output = bytes(self._head) + gap + bytes(self._tail)
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0
        return output

    def after(self, position: int) -> tuple[bytes, int]:
        """Return the kept output after the first `position` bytes, and the number of bytes so far. Another thread may feed
        meanwhile; the middle of a long output may then lack some bytes."""
        head, tail, dropped = bytes(self._head), bytes(self._tail), self._dropped
        begin = len(head) + dropped
        return head[position:] + tail[max(0, position - begin) :], begin + len(tail)

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess
