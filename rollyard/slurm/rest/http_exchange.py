"""Sends one HTTP request on a new connection and reads the answer.

This module replaces aiohttp's client. slurmrestd of Slurm 26.05 sends two answers to a refused request. Because of the
second answer, aiohttp also discards the first answer, which has Slurm's error. This module reads only the first answer.
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
    """Send a request; return the status and body of the answer. There is no time limit here.

    Raises OSError if the connection fails, EOFError if the answer is cut off, ValueError for malformed HTTP, and
    asyncio.LimitOverrunError for a line that is too long.
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
        while status < 200:  # 1xx: an interim answer, which precedes the final answer
            status, found = await _head(reader)
        return status, await _body(reader, found)


@contextlib.asynccontextmanager
async def _connected(address: SlurmrestdAddress) -> AsyncIterator[Streams]:
    reader, writer = await _connect(address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # not `close`, which would wait for a frozen server


async def _connect(address: SlurmrestdAddress) -> Streams:
    if address.socket is not None:
        return await asyncio.open_unix_connection(address.socket)
    parts = urlsplit(address.url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    return await asyncio.open_connection(parts.hostname, parts.port or PORTS[parts.scheme], ssl=context)


async def _head(reader: asyncio.StreamReader) -> tuple[int, Mapping[str, str]]:
    """Read status and header. Return the status and the header's fields, with names in lower case."""
    version, _, rest = (await _line(reader)).partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version[:40]!r} is not HTTP")
    found = {}
    while line := await _line(reader):
        name, _, value = line.partition(":")
        found[name.strip().lower()] = value.strip()
    return int(rest[:3]), found


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):  # a reverse proxy in front of slurmrestd may send chunks
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
