"""Bodies that are too large, too deep, damaged or endless, with and without a token."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from rollyard.api import listener, request_bodies
from rollyard.trust.bearer_tokens import Role, TokenSigner
from rollyard.trust.ca import Authority
from rollyard.trust.tls_contexts import client_ssl_context, server_ssl_context
from tests.support.outside_api import Api, Serve

pytestmark = pytest.mark.slow(40)

POOLS = "/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools"
DEEP = b"[" * 60_000
PATHS = (("POST", "/v1/rollouts"), ("POST", POOLS), ("PUT", f"{POOLS}/policy"), ("DELETE", f"{POOLS}/policy"),
         ("POST", f"{POOLS}/policy/weights"), ("POST", "/v1/sessions"))  # fmt: skip


def pool(**metadata: Any) -> dict[str, Any]:
    spec = {"model": {"path": "/m"}, "engine": {"external": {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}}}
    return {
        "apiVersion": "rollyard.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "p", **metadata},
        "spec": spec,
    }


@functools.cache
def bomb() -> bytes:
    return gzip.compress(b" " * (64 << 20), 1)


async def answer(api: Api, method: str, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    async with api.http.request(method, api.url + path, data=io.BytesIO(body), headers=headers) as found:
        return found.status, json.loads(await found.read() or b"{}")


# what is refused is answered, whatever it is


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_body_that_cannot_be_read_is_the_callers_fault(serving: Serve, method: str, path: str) -> None:
    async with serving() as api:
        for body, headers, codes in (
            (DEEP, {}, (400, 413, 422)),
            (b'{"a":' * 60_000, {}, (400, 413, 422)),
            (b'{"pool": "\\ud800"}', {}, (400, 422)),
            (b"\xff\xfe", {}, (400, 422)),
            (b"no json", {"Content-Encoding": "gzip"}, (400,)),
            (b"no json", {"Content-Encoding": "br"}, (415,)),
            (gzip.compress(b"{}")[:-4], {"Content-Encoding": "gzip"}, (400,)),
            (bomb(), {"Content-Encoding": "gzip"}, (400, 413)),
            (b"[1]", {}, (400, 422)),
            (b"9" * 10_000, {}, (400, 422)),
        ):
            status, told = await answer(api, method, path, body, **headers)
            assert status in codes, (body[:20], told)
            assert told["message"]


async def test_sizes_are_those_of_kubernetes_and_are_named(serving: Serve) -> None:
    async with serving() as api:

        async def told(body: dict[str, Any]) -> tuple[int, str]:
            status, found = await answer(api, "POST", POOLS, json.dumps(body).encode())
            return status, found.get("message", "")

        status, words = await told(pool(annotations={"a": "x" * (4 << 20)}))
        assert (status, "3145728 bytes" in words) == (413, True)
        status, words = await told(pool(annotations={"a": "x" * (1 << 18)}))
        assert (status, "metadata.annotations: Too long: may not be more than 262144 bytes" in words) == (422, True)
        status, words = await told(pool() | {"spec": {**pool()["spec"], "allocation": {"setup": "x" * (2 << 20)}}})
        assert (status, "at most 1572864" in words) == (413, True)
        assert (await told(pool(annotations={"a": "x" * 200_000}, labels={"app.io/x": "1"})))[0] == 201


async def test_names_and_labels_are_refused_in_the_words_of_kubernetes(serving: Serve) -> None:
    async with serving() as api:
        wrong = {"a b!": "fine", "": "fine", "/x": "fine", "UP/x": "fine", "k": "c d?", "l": "v" * 64, "m" * 64: "fine"}
        status, told = await answer(api, "POST", POOLS, json.dumps(pool(labels=wrong) | {}).encode())
        causes = [(c["field"], c["message"]) for c in told["details"]["causes"]]
        assert status == 422
        assert {field for field, _ in causes} == {"metadata.labels"}
        words = [message for _, message in causes]
        for expected in (
            '"a b!": name part must consist of alphanumeric characters',
            '"": name part must be non-empty',
            '"/x": prefix part must be non-empty',
            '"UP/x": prefix part a lowercase RFC 1123 subdomain must consist of',
            '"c d?": a valid label must be an empty string or consist of',
            "must be no more than 63 characters",
            "name part must be no more than 63 characters",
        ):
            assert any(expected in w for w in words), (expected, words)
        status, told = await answer(api, "POST", POOLS, json.dumps(pool(name="Not_So")).encode())
        assert status == 422
        assert "a lowercase RFC 1123 label must consist of lower case" in told["message"]
        status, told = await answer(api, "POST", POOLS, json.dumps(pool(name=7)).encode())
        assert [c["reason"] for c in told["details"]["causes"]] == ["FieldValueTypeInvalid"]


async def test_what_must_be_a_mapping_may_be_anything_in_a_body(serving: Serve) -> None:
    async with serving() as api:
        for method, path, body in (
            ("POST", POOLS, {**pool(), "metadata": 5}),
            ("POST", POOLS, {**pool(), "metadata": ["name"]}),
            ("PATCH", f"{POOLS}/policy", {"metadata": "x"}),
            ("PATCH", f"{POOLS}/policy", {"metadata": None, "spec": 5}),
            ("PUT", f"{POOLS}/policy/scale", {"spec": 5}),
            ("PUT", f"{POOLS}/policy/scale", {"spec": {"replicas": True}}),
            ("DELETE", f"{POOLS}/policy", {"preconditions": 5}),
        ):
            headers = {"Content-Type": "application/merge-patch+json"}
            status, told = await answer(api, method, path, json.dumps(body).encode(), **headers)
            assert status in (400, 422), (method, path, body, told)


async def test_thousands_of_mistakes_take_no_time(serving: Serve) -> None:
    async with serving() as api:
        body = json.dumps({f"k{i}": 0 for i in range(100_000)}).encode()
        for method, path in PATHS:
            if method == "DELETE":
                continue  # takes options that it does not know, as Kubernetes does
            async with asyncio.timeout(60):
                status, told = await answer(api, method, path, body)
            assert status in (400, 413, 422)
            assert len(json.dumps(told)) < 30_000


async def test_a_nodes_first_message_may_be_anything(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api:
        token = TokenSigner.open(tmp_path / "data" / "keys" / "token.key").issue(Role.NODE, "u")
        for text in (DEEP.decode(), "\x00", '{"type": "hello"}', "[]"):
            async with api.http.ws_connect(
                f"{api.url}/v1/node/connect", headers={"Authorization": f"Bearer {token}"}
            ) as socket:
                await socket.send_str(text)
                assert (await socket.receive(10)).type is aiohttp.WSMsgType.CLOSE
                assert socket.close_code == 4408


# nobody without a token costs more than a 401


def half_sent(api: Api, *lines: str, body: bytes = b"") -> socket.socket:
    url = urlsplit(api.url)
    made = socket.create_connection((url.hostname, url.port or 0), 20)
    made.sendall("\r\n".join([*lines, "Host: x", "", ""]).encode() + body)
    return made


async def taken(made: socket.socket) -> bytes:
    """All that comes until the other side closes."""

    def read() -> bytes:
        found = b""
        with made, contextlib.suppress(ConnectionResetError):
            while piece := made.recv(1 << 16):
                found += piece
        return found

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(
    "asked", ["POST /v1/rollouts", "GET /healthz", "POST /gateway/v1/chat/completions", f"POST {POOLS}"]
)
async def test_a_body_without_a_token_is_not_asked_for_and_not_waited_for(serving: Serve, asked: str) -> None:
    async with serving() as api:
        lines = (f"{asked} HTTP/1.1", "Content-Length: 100000000", "Expect: 100-continue")
        said = await taken(half_sent(api, *lines, body=b"x" * 1000))
        assert said.startswith(b"HTTP/1.1 401 ")


async def test_a_caller_with_a_token_is_told_to_go_on(serving: Serve) -> None:
    async with serving() as api:
        body = json.dumps({"pool": "policy"}).encode()
        lines = ("POST /v1/sessions HTTP/1.1", f"Authorization: Bearer {api.admin}", "Expect: 100-continue")
        made = half_sent(api, *lines, f"Content-Length: {len(body)}", "Connection: close")
        assert (await asyncio.to_thread(made.recv, 25)) == b"HTTP/1.1 100 Continue\r\n\r\n"
        made.sendall(body)
        assert (await taken(made)).startswith(b"HTTP/1.1 503 ")  # no engine, but it was read


async def test_a_body_that_stops_arriving_is_given_up(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "IDLE_SECONDS", 0.2)
    async with serving() as api:
        lines = ("POST /v1/rollouts HTTP/1.1", f"Authorization: Bearer {api.admin}", "Content-Length: 100")
        said = await taken(half_sent(api, *lines, body=b"["))
        assert said.startswith(b"HTTP/1.1 408 ")


async def test_a_slow_and_steady_body_is_taken(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "IDLE_SECONDS", 2.0)

    async def slowly() -> AsyncIterator[bytes]:
        for byte in b'{"pool": "policy"} ' + b" " * 11:
            yield bytes([byte])
            await asyncio.sleep(0.1)  # three seconds in all

    async with serving() as api, api.http.post(f"{api.url}/v1/sessions", data=slowly()) as found:
        assert found.status == 503  # no engine, but it was read


async def test_a_body_that_arrives_byte_by_byte_is_given_up(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "LEAST_SECONDS", 0.2)

    async def slowly() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async with serving() as api, api.http.post(f"{api.url}/v1/rollouts", data=slowly()) as found:
        assert (found.status, "arrives too slowly" in (await found.json())["message"]) == (408, True)


# the listener


@contextlib.asynccontextmanager
async def listening(folder: Path, app: web.Application) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    authority = Authority.open(folder / "keys")
    listener.set_up(app)
    async with contextlib.AsyncExitStack() as stack:
        tls = server_ssl_context(authority.server_certificate(["127.0.0.1"]))
        yield (
            await listener.listen(app, "127.0.0.1", 0, tls, stack, stop_seconds=1.0),
            client_ssl_context(authority.ca_pem),
        )


def greeting() -> web.Application:
    async def hello(request: web.Request) -> web.Response:
        if "known" in request.query:
            listener.mark_trusted(request)
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    return app


async def test_connections_that_say_nothing_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.3)
    async with listening(tmp_path, greeting()) as (port, _), asyncio.timeout(60):
        reader, silent = await asyncio.open_connection("127.0.0.1", port)  # never a handshake
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        silent.close()
    monkeypatch.undo()  # a slow machine needs its time for a handshake
    monkeypatch.setattr(listener, "HEADER_SECONDS", 0.3)
    async with listening(tmp_path, greeting()) as (port, trust), asyncio.timeout(60):
        for said in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                found = await reader.read()
                assert found.endswith(b"hello") or not found
            writer.close()


async def test_the_oldest_of_too_many_unknown_connections_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_UNTRUSTED", 3)
    async with listening(tmp_path, greeting()) as (port, trust), asyncio.timeout(60):

        async def connected(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
            return reader, writer

        good = await connected("/?known")
        others = [await connected("/") for _ in range(4)]
        assert await others[0][0].read() == b""  # closed
        for reader, writer in (good, others[3]):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readuntil(b"hello")
        for _, writer in (good, *others):
            writer.close()
