"""Streams to clients of HTTP/1.0, such as some reverse proxies and load generators."""

from __future__ import annotations

from aiohttp import HttpVersion11, web


async def end_stream_by_closing(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """A signal `on_response_prepare` that closes the connection after a stream to such a client.

    HTTP/1.0 has no chunks, so only the end of the connection can end a stream. If the client asked for `keep-alive`, aiohttp
    would keep the connection, and the client would wait for the end for as long as the connection lives.
    """
    if request.version < HttpVersion11 and response.content_length is None:
        response.force_close()
