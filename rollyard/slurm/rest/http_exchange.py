"""One HTTP request and its answer, on a connection of its own.

It does not use aiohttp's client. The slurmrestd of Slurm 26.05 sends two answers to a refused request; because of the
second one aiohttp discards also the first, and Slurm's words with it. Here the first answer counts, and the rest is
never read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from rollyard.slurm.rest.address import SlurmrestdAddress

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PORTS = {"http": 80, "https": 443}


async def request(
    address: SlurmrestdAddress, method: str, path: str, headers: Mapping[str, str], body: bytes | None
) -> tuple[int, bytes]:
    """Send a request and return the answer's status and body, without a time limit.

    Raises OSError, EOFError, and ValueError for malformed HTTP.
    """
    async with _connected(address) as (reader, writer):
        parts = urlsplit(address.url)
        sent = {"Host": parts.netloc, "Accept": "application/json", "Connection": "close", **headers}
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{method} {parts.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode() + (body or b""))
        await writer.drain()
        status, found = await _head(reader)
        while status < 200:  # an interim answer
            status, found = await _head(reader)
        return status, await _body(reader, found)


@contextlib.asynccontextmanager
async def _connected(address: SlurmrestdAddress) -> AsyncIterator[Streams]:
    reader, writer = await _connect(address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # no orderly close, because a frozen server would not answer it


async def _connect(address: SlurmrestdAddress) -> Streams:
    if address.socket is not None:
        return await asyncio.open_unix_connection(address.socket)
    parts = urlsplit(address.url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    return await asyncio.open_connection(parts.hostname, parts.port or PORTS[parts.scheme], ssl=context)


async def _head(reader: asyncio.StreamReader) -> tuple[int, Mapping[str, str]]:
    """Return the status, and the header's fields by their names in lower case."""
    version, _, rest = (await _line(reader)).partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version[:40]!r} is not HTTP")
    found = {}
    while line := await _line(reader):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return int(rest[:3]), found


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):  # from a proxy that may stand before slurmrestd
        parts = []
        while size := int((await _line(reader)).partition(";")[0], 16):
            parts.append(await reader.readexactly(size))
            await _line(reader)
        return b"".join(parts)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read()


async def _line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")
