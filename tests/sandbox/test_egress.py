"""Sandboxes with a network: the egress proxy reaches the allowed hosts alone, and `host_network` reaches the node's
servers."""

from __future__ import annotations

import asyncio
import http.server
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.sandbox.conftest import SMALL

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONNECT = """
import socket
c = socket.create_connection(("127.0.0.1", 3128), 20)
c.sendall(b"CONNECT {where} HTTP/1.1\\r\\n\\r\\n")
answer = c.recv(400).split(b"\\r\\n")[0].decode()
print(answer)
if " 200 " in answer:
    c.sendall(b"ping" * 100_000)
    c.shutdown(socket.SHUT_WR)
    got = b""
    while part := c.recv(65536):
        got += part
    print(len(got), got[:4])
"""
FETCH = "import urllib.request; print(urllib.request.urlopen({url!r}, timeout=20).read().decode())"

SITE_PROXY = """
import asyncio, socket, sys
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.sandbox.egress_proxy import EgressProxy
async def main():
    await EgressProxy([HostPattern.parse(host) for host in sys.argv[2:]]).start(socket.socket(fileno=int(sys.argv[1])))
    await asyncio.Event().wait()
asyncio.run(main())
"""


class _Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        lines = [f"{self.path} for {self.headers['Host']}", *sorted(k.lower() for k in self.headers)]
        body = " ".join(lines).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def site() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Serve the bytes of each connection back, after the client has sent all of them."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def with_hosts(*hosts: str) -> SandboxSpec:
    return SandboxSpec(None, SMALL, allowed_hosts=tuple(map(HostPattern.parse, hosts)))


async def printed(sandbox: Sandbox, code: str) -> str:
    return (await sandbox.ipython(code, 60)).output


async def test_allowed_hosts_are_reached_and_no_others(sandboxes: SandboxFactory) -> None:
    with site() as open_site, site() as closed_site:
        async with (
            echo() as port,
            await sandboxes.start(
                with_hosts(f"127.0.0.1:{open_site}", f"127.0.0.1:{port}", "localhost:1", "no-such-host.invalid")
            ) as sandbox,
        ):
            url = f"http://127.0.0.1:{open_site}/some/path?x=1"
            seen = await printed(
                sandbox, f"import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n{FETCH.format(url=url)}"
            )
            assert seen.startswith(
                f"/some/path?x=1 for 127.0.0.1:{open_site} accept-encoding connection host user-agent"
            )
            refused = await printed(sandbox, FETCH.format(url=f"http://127.0.0.1:{closed_site}/"))
            assert "403" in refused
            tunnel = await printed(sandbox, CONNECT.format(where=f"127.0.0.1:{port}"))
            assert tunnel == "HTTP/1.1 200 Connection established\n400000 b'ping'\n"
            for where, status in (
                (f"127.0.0.1:{closed_site}", "403 Forbidden"),
                (f"localhost:{port}", "403 Forbidden"),
                ("localhost:1", "502 Bad Gateway"),  # a name that leads to the node itself
                ("no-such-host.invalid:443", "502 Bad Gateway"),
                ("nonsense", "400 Bad Request"),
            ):
                assert await printed(sandbox, CONNECT.format(where=where)) == f"HTTP/1.1 {status}\n", where
            direct = f"import socket; socket.create_connection(('127.0.0.1', {open_site}), 5)"
            assert "ConnectionRefusedError" in await printed(sandbox, direct)
            shown = await sandbox.bash("echo $https_proxy; cat /proc/net/dev | wc -l", 10)
            assert shown.output == "http://127.0.0.1:3128\n3\n"


async def test_a_node_behind_a_proxy_of_its_site(sandboxes: SandboxFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the site's proxy connects to the hosts. Here it is a proxy of the same class in a process of its own, which
    allows two of the three hosts."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with site() as port, socket.create_server(("127.0.0.1", 0)) as listener:
        async with echo() as far:
            allowed = [f"127.0.0.1:{port}", f"127.0.0.1:{far}"]
            site_proxy = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SITE_PROXY, str(listener.fileno()), *allowed, pass_fds=[listener.fileno()]
            )
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"http://user:word@127.0.0.1:{listener.getsockname()[1]}")
            async with await sandboxes.start(with_hosts(*allowed, "unknown.example")) as sandbox:
                through_proxy = "import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n"
                seen = await printed(sandbox, through_proxy + FETCH.format(url=f"http://127.0.0.1:{port}/x"))
                assert seen.startswith(f"/x for 127.0.0.1:{port}")
                tunnel = await printed(sandbox, CONNECT.format(where=f"127.0.0.1:{far}"))
                assert tunnel == "HTTP/1.1 200 Connection established\n400000 b'ping'\n"
                assert (
                    await printed(sandbox, CONNECT.format(where="unknown.example:443")) == "HTTP/1.1 502 Bad Gateway\n"
                )
                assert await printed(sandbox, CONNECT.format(where="other.example:443")) == "HTTP/1.1 403 Forbidden\n"
            site_proxy.kill()
            await site_proxy.wait()


async def test_connections_beyond_the_bound_are_closed_and_others_go_on(sandboxes: SandboxFactory) -> None:
    async with echo() as port, await sandboxes.start(with_hosts(f"127.0.0.1:{port}")) as sandbox:
        flood = "import socket; held = [socket.create_connection(('127.0.0.1', 3128), 20) for _ in range(200)]"
        assert await printed(sandbox, flood) == ""
        closed = "for c in held: c.settimeout(0.5)\nlen([c for c in held[64:] if not c.recv(1)])"
        assert await printed(sandbox, closed) == "136\n"
        await printed(sandbox, "for c in held: c.close()")
        for _ in range(100):  # the proxy sees the ends a moment later
            tunnel = await sandbox.ipython(CONNECT.format(where=f"127.0.0.1:{port}"), 60)
            if not tunnel.error:
                break
        assert tunnel.output.endswith("400000 b'ping'\n")


async def test_closing_the_sandbox_closes_its_tunnels(sandboxes: SandboxFactory) -> None:
    gone = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with await sandboxes.start(with_hosts(f"127.0.0.1:{port}")) as sandbox:
            opened = (
                "import socket; c = socket.create_connection(('127.0.0.1', 3128), 20); "
                f"c.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n'); print(c.recv(12))"
            )
            assert await printed(sandbox, opened) == "b'HTTP/1.1 200'\n"
            assert not gone.is_set()
        await gone.wait()


async def test_the_host_network_has_the_servers_and_names_of_the_node(sandboxes: SandboxFactory) -> None:
    with site() as port:
        async with await sandboxes.start(SandboxSpec(None, SMALL, host_network=True)) as sandbox:
            assert (await printed(sandbox, FETCH.format(url=f"http://127.0.0.1:{port}/x"))).startswith("/x for")
            assert "proxy" not in (await sandbox.bash("env", 10)).output
            names = await sandbox.bash("cat /etc/hosts", 10)
            with open("/etc/hosts") as ours:
                assert names.output.strip() == ours.read().strip()
            listening = await sandbox.listen()
            with listening:
                assert listening.getsockname()[0] == "127.0.0.1"


async def test_certificates_of_the_node_are_trusted_in_the_default_image(sandboxes: SandboxFactory) -> None:
    async with await sandboxes.start(with_hosts("pypi.org")) as sandbox:
        inside = await sandbox.bash("cat /etc/ssl/certs/ca-certificates.crt | wc -c", 10)
        try:
            with open("/etc/ssl/certs/ca-certificates.crt", "rb") as ours:
                assert inside.output == f"{len(ours.read())}\n"
        except FileNotFoundError:
            pytest.skip("this machine has no CA certificates")
