"""An HTTP proxy through which one sandbox reaches the hosts that its pool allows, and no others.

The proxy runs in the node agent. Its socket listens on the sandbox's own loopback (`sandbox_agent/inside_listener.py`), so
each connection comes from this sandbox. `CONNECT` opens a tunnel, for HTTPS. A plain request goes to the named host, one
request a connection.

The proxy resolves names itself and connects to the address that it has checked. So a name whose address changes between
the check and the connection gains nothing. Nodes of many sites reach the internet only through a proxy of the site, which
their environment names (`https_proxy`). There the site's proxy resolves the names and decides where they may lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from rollyard.core.aio import end_tasks, running
from rollyard.kinds.values.host_pattern import Address, HostPattern, address_of

log = logging.getLogger(__name__)

PORT = 3128
"""Port on the sandbox's loopback."""
URL = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost,::1"),
}
"""Variables by which programs in the sandbox find the proxy."""
MAX_CONNECTIONS = 64
"""Greatest number of connections of one sandbox. Each uses two file descriptors of the node agent."""
CONNECT_SECONDS = 30.0
HEAD_SECONDS = 30.0
FINISH_SECONDS = 10.0
"""Seconds in which a side of an ended connection takes what is still on its way to it."""
MAX_HEAD_BYTES = 1 << 16
_CHUNK = 1 << 16
_OWN_HEADERS = (b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive")
"""Headers of a plain request that the proxy replaces or drops."""
_METHOD, _TARGET = re.compile(rb"[A-Za-z-]+"), re.compile(rb"[!-~]+")
_LOOKUPS = ThreadPoolExecutor(16, "names")
"""Threads of their own. They may wait long for a name, and other work of the node agent must not wait for them."""


class _Refused(Exception):
    """Answer to a request that the proxy does not forward."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class EgressProxy:
    """The proxy of one sandbox."""

    def __init__(self, allowed: Sequence[HostPattern]) -> None:
        self._allowed = allowed
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refused_hosts: set[str] = set()

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on `listener`, which the proxy closes at its end."""
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
        await end_tasks(*self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
            await _finish(writer)
        except _Refused as error:
            body = f"{error}\n".encode()
            about = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
            with contextlib.suppress(OSError):
                writer.write(f"HTTP/1.1 {error.status}\r\n{about}\r\n\r\n".encode() + body)
                await writer.drain()
            await _finish(writer)
        except (OSError, EOFError, TimeoutError):
            pass  # one side is gone
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, headers = await _read_head(reader)
        tunnel = method == b"CONNECT"
        try:
            parts = urlsplit(f"//{target}" if tunnel else target)
            host, port = parts.hostname or "", parts.port or (0 if tunnel else 80)
        except ValueError:
            host, port = "", 0
        if not host or not port or (not tunnel and parts.scheme != "http"):
            raise _Refused("400 Bad Request", "the proxy takes `CONNECT host:port` and `GET http://host/path`")
        # The site's proxy might read another host than we do from a user name, or from another end of a line. So it gets none.
        name = f"[{host}]" if ":" in host else host
        site = _SiteProxy.of_environment(tunnel, host)
        their_reader, their_writer = await self._connect(host, port, site)
        try:
            if tunnel:
                if site is not None:
                    await site.open_tunnel(their_reader, their_writer, f"{name}:{port}")
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                where = name if port == 80 else f"{name}:{port}"
                seen = (f"http://{where}" if site is not None else "") + (parts.path or "/")
                seen += f"?{parts.query}" if parts.query else ""
                line = f"{method.decode()} {seen} HTTP/1.1\r\nHost: {where}\r\n".encode()
                kept = [h for h in headers if h.split(b":", 1)[0].strip().lower() not in _OWN_HEADERS]
                kept += site.headers if site is not None else []
                their_writer.write(line + b"\r\n".join([*kept, b"Connection: close", b"", b""]))
            async with running(_copy(reader, their_writer)) as up, running(_copy(their_reader, writer)) as down:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if up.done() and up.exception() is None:  # a client may end its request's direction first
                    await asyncio.wait({down})
            await _finish(their_writer)
        finally:
            their_writer.transport.abort()

    async def _connect(
        self, host: str, port: int, site: _SiteProxy | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an allowed host, or to the site's proxy, which then connects to this host."""
        pattern = next((p for p in self._allowed if p.matches(host, port)), None)
        if pattern is None:
            self._log_refusal(f"{host}:{port}")
            raise _Refused("403 Forbidden", f"the pool's sandbox.allowedHosts do not include {host}:{port}")
        failure = "its name has no address"
        next_host, next_port = (host, port) if site is None else (site.host, site.port)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                for address in await _addresses(next_host, next_port):
                    if site is None and not pattern.may_be_at(address):
                        failure = f"its address {address} is one that sandbox.allowedHosts must name itself"
                        continue
                    try:
                        return await asyncio.open_connection(str(address), next_port, limit=_CHUNK)
                    except OSError as error:
                        failure = error.strerror or str(error)
        except TimeoutError:
            failure = f"no connection within {CONNECT_SECONDS:g} s"
        if site is not None:
            failure = f"the site's proxy {site} does not answer: {failure}"
        raise _Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {failure}")

    def _log_refusal(self, where: str) -> None:
        """Log each refused host once. The sandbox chooses the names, so their number is bounded."""
        if where not in self._refused_hosts and len(self._refused_hosts) < 100:
            self._refused_hosts.add(where)
            log.info("a sandbox asked for %r, which its pool does not allow", where[:300])


@dataclass(frozen=True)
class _SiteProxy:
    """The proxy through which this node reaches other hosts."""

    host: str
    port: int
    headers: list[bytes]
    """The proxy's password, as a header."""

    @classmethod
    def of_environment(cls, tunnel: bool, host: str) -> _SiteProxy | None:
        """Return the proxy that `https_proxy` (for a tunnel) or `http_proxy` names, or None if there is none for `host`."""
        url = getproxies_environment().get("https" if tunnel else "http")
        if not url or proxy_bypass(host):
            return None
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if not parts.hostname:
            return None
        headers = []
        if parts.username is not None:
            password = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers = [b"Proxy-Authorization: Basic " + b64encode(password.encode())]
        return cls(parts.hostname, parts.port or 80, headers)

    async def open_tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        writer.write(b"\r\n".join([f"CONNECT {target} HTTP/1.1\r\nHost: {target}".encode(), *self.headers, b"", b""]))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode(errors="replace")
        except (TimeoutError, EOFError, asyncio.LimitOverrunError):
            answer = "no answer"
        if answer.split(" ")[1:2] != ["200"]:
            raise _Refused("502 Bad Gateway", f"{target} cannot be reached: the site's proxy {self} says {answer!r}")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def _addresses(host: str, port: int) -> Iterator[Address]:
    """Return the addresses of a name."""
    if (literal := address_of(host)) is not None:
        return iter([literal])
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look_up)
    except (OSError, UnicodeError):
        return iter([])
    addresses = (address_of(str(sockaddr[0])) for *_, sockaddr in found)
    return (address for address in addresses if address is not None)


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, str, list[bytes]]:
    """Return the method, the target and the header lines of a request."""
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused("431 Request Header Fields Too Large", f"a request has at most {MAX_HEAD_BYTES} bytes") from None
    first, *headers = head[:-4].split(b"\r\n")
    words = first.split(b" ")
    if (
        len(words) != 3
        or not _METHOD.fullmatch(words[0])
        or not _TARGET.fullmatch(words[1])
        or words[2][:7] != b"HTTP/1."
    ):
        raise _Refused("400 Bad Request", "this is not a request of HTTP/1.1")
    if any(end in line for line in headers for end in (b"\r", b"\n", b"\0")):  # for some servers an end of a line
        raise _Refused("400 Bad Request", "a header has a control character")
    return words[0], words[1].decode(), headers


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Close a connection once the other side has taken everything, or after FINISH_SECONDS."""
    writer.close()
    with contextlib.suppress(OSError):  # a TimeoutError too
        async with asyncio.timeout(FINISH_SECONDS):
            await writer.wait_closed()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
