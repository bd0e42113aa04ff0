"""Bodies of requests. `100 Continue` is sent only just before a body is read. Unpacked bodies have a size limit."""

from __future__ import annotations

import zlib

from aiohttp import hdrs, web

from rollyard.core.errors import BadRequest, TooLarge, UnsupportedMediaType

_STEP = 1 << 20
"""Greatest number of bytes that one call of zlib unpacks."""
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def continue_on_demand(_: web.Request) -> None:
    """An `expect_handler` that sends nothing. `send_continue` sends `100 Continue` later, unless the caller is refused."""


async def send_continue(request: web.Request) -> None:
    """Send `100 Continue` to a caller that waits for it. Call this function once, before the first read."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.can_read_body:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # these bytes do not count as part of the response


def encoding_of(header: str | None) -> str | None:
    """Return the encoding that a Content-Encoding header names; None for plain bytes. Raises UnsupportedMediaType."""
    named = (header or "").strip().lower()
    if named in ("", "identity"):
        return None
    if named not in _WINDOW:
        raise UnsupportedMediaType(
            f"Content-Encoding {named[:40]!r} is not supported; send gzip, deflate or plain bytes"
        )
    return named


def inflate(data: bytes | bytearray, encoding: str, most: int) -> bytearray:
    """Unpack a body. Raises TooLarge above `most` bytes, and BadRequest for damaged data."""
    unpacked, left = bytearray(), bytes(data)
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        while not stream.eof:
            piece = stream.decompress(left, min(_STEP, most + 1 - len(unpacked)))
            unpacked += piece
            left = stream.unconsumed_tail
            if not (piece or left or stream.eof):
                raise BadRequest(f"the body is not {encoding}, which its Content-Encoding names: it ends too early")
            if len(unpacked) > most:
                raise TooLarge(f"the unpacked body has more than the {most} bytes that are allowed")
    except zlib.error as error:
        raise BadRequest(f"the body is not {encoding}, which its Content-Encoding names: {error}") from None
    if stream.unused_data:
        raise BadRequest(f"bytes follow the end of the {encoding} body")
    return unpacked
