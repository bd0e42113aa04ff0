"""Careless and hostile callers of the server's gateway, and the server's answers to them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import re
import shutil
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from rollyard.core.aio import running
from rollyard.gateway import app
from rollyard.gateway.apis import chat
from rollyard.gateway.external import external_sessions, routed_sampler
from rollyard.gateway.requests import chat_request
from rollyard.gateway.session import session as session_module
from rollyard.kinds.base import Reason
from rollyard.kinds.pool import PoolKey
from rollyard.trust.bearer_tokens import Role, TokenSigner
from tests.support import make
from tests.support.outside_api import POOL, QUESTION, Api, Serve, client
from tests.support.until import until

BODY = {"model": "m", "messages": QUESTION}


def caller(
    api: Api, opened: dict[str, Any], body: bytes, *headers: str, buffer: int = 0, version: str = "1.1",
    path: str = "chat/completions",
) -> socket.socket:  # fmt: skip
    """A bare connection that has sent this much of a call."""
    made = socket.socket()
    if buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    url = urlsplit(api.url)
    made.connect((url.hostname, url.port))
    lines = [
        f"POST {urlsplit(opened['base_url']).path}/{path} HTTP/{version}",
        *("Host: x", f"Authorization: Bearer {opened['key']}", *headers),
    ]
    made.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return made


def read_all(connection: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 20):
            got += data
    return got


async def post(opened: dict[str, Any], body: bytes, **headers: str) -> tuple[int, Any]:
    url, own = f"{opened['base_url']}/chat/completions", {"Authorization": f"Bearer {opened['key']}"}
    async with aiohttp.ClientSession() as http, http.post(url, data=io.BytesIO(body), headers=own | headers) as answer:
        return answer.status, await answer.json()


# callers that do not go on


@pytest.fixture
def small_send_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes little of an answer that nobody reads, however large its buffers grow on this machine."""
    write = app._write

    async def write_through_little(request: web.Request, *rest: Any, **more: Any) -> None:
        assert request.transport is not None
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await write(request, *rest, **more)

    monkeypatch.setattr(app, "_write", write_through_little)


@pytest.mark.usefixtures("small_send_buffer")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_that_stops_reading_does_not_keep_its_session(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(app, "WRITE_STALL_SECONDS", 0.3)
    async with serving() as api, saying("word " * 600).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open(sampling={"max_tokens": 10_000})
        body = json.dumps(BODY | {"stream": stream, "model": "m" * 500, "logprobs": True, "top_logprobs": 0}).encode()
        with caller(api, opened, body, f"Content-Length: {len(body)}", buffer=4096):
            session = api.gateway_session(opened["id"])
            await until(lambda: session.byte_budget._reserved)
            await until(lambda: not session.byte_budget._reserved and not upstream.running)
            assert (session.calls, session.in_flight) == (0 if stream else 1, 0)
            assert session._answered.any_to_repeat == (not stream), "a repetition gets the answer"


async def test_a_caller_that_reads_slowly_gets_the_whole_answer(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of time counts from one piece to the next."""
    monkeypatch.setattr(app, "PIECE_BYTES", 1 << 10)
    writes = []
    write = app._write

    async def counted(request: web.Request, response: Any, data: bytes, **more: Any) -> None:
        writes.append(len(data))
        await write(request, response, data, **more)

    monkeypatch.setattr(app, "_write", counted)
    async with serving() as api, saying("word " * 600).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open(sampling={"max_tokens": 10_000})
        status, told = await post(opened, json.dumps(BODY | {"logprobs": True, "top_logprobs": 0}).encode())
        assert (status, told["choices"][0]["message"]["content"]) == (200, ("word " * 600).strip())
        assert max(writes) == 1 << 10 < sum(writes) // 10


async def test_uploads_that_stop_do_not_keep_others_out(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.5)
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        stuck = [caller(api, opened, b"{", "Content-Length: 8000000") for _ in range(12)]
        try:
            async with client(opened) as ai:
                said = await ai.chat.completions.create(model="m", messages=QUESTION, timeout=60)  # type: ignore[call-overload]
            assert said.choices[0].message.content == "Hi."
            for one in stuck:
                one.settimeout(20)
                assert (await asyncio.to_thread(one.recv, 12)) == b"HTTP/1.1 408"
        finally:
            for one in stuck:
                one.close()


@pytest.mark.usefixtures("small_send_buffer")
async def test_a_turn_that_ends_behind_the_sessions_end_is_not_recorded(serving: Serve, saying: Any) -> None:
    """Its caller reads slowly, so that the model is done long before the call is."""
    async with serving() as api, saying("word " * 600).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open(sampling={"max_tokens": 10_000})
        body = json.dumps(BODY | {"stream": True, "model": "m" * 500}).encode()
        with caller(api, opened, body, f"Content-Length: {len(body)}", buffer=4096) as reader:
            session = api.gateway_session(opened["id"])
            sampled = session._sampling._tasks
            await until(lambda: sampled and all(task.done() for task in sampled))
            closed = await api.record(opened["id"], close=True)
            async with running(asyncio.to_thread(read_all, reader)):
                await until(lambda: not session.in_flight)
                reader.shutdown(socket.SHUT_RDWR)
            after = await api.record(opened["id"], close=True)
            assert after.trajectory == closed.trajectory
            assert (after.session.calls, after.session.in_flight) == (0, 0)


async def test_the_requests_in_memory_are_bounded_and_who_waits_is_answered(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LEAST_HELD", 1 << 20)
    monkeypatch.setattr(session_module, "LARGEST_HELD", 0)
    async with serving() as api, saying("Hi.", pace=0.05).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        bodies = api.gateway_session(opened["id"]).byte_budget
        body = json.dumps(BODY).encode() + b" " * 300_000
        calls = [asyncio.create_task(post(opened, body)) for _ in range(9)]
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, bodies._reserved)
            await asyncio.sleep(0)
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        assert 2 * len(body) < most <= 1 << 20
        assert bodies._reserved == 0


async def test_no_more_calls_at_once_than_a_server_has_connections_for(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sessions, "MAX_AT_ONCE", 3)
    async with serving() as api, saying("word " * 400, pace=0.02).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        held = [asyncio.create_task(post(opened, json.dumps(BODY).encode())) for _ in range(3)]
        await until(lambda: upstream.running == 3)
        status, told = await post(opened, json.dumps(BODY).encode())
        assert (status, told["error"]["code"]) == (429, "calls_at_once")
        held.pop().cancel()
        await until(lambda: upstream.running == 2)
        short = json.dumps(BODY | {"max_tokens": 2}).encode()
        assert (await post(opened, short))[0] == 200
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_callers_that_give_up_in_line_free_their_place(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LEAST_HELD", 1000)
    monkeypatch.setattr(session_module, "LARGEST_HELD", 0)
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        bodies = api.gateway_session(opened["id"]).byte_budget
        with caller(api, opened, b"{", "Content-Length: 900"):
            await until(lambda: bodies._reserved == 900)
            body = json.dumps(BODY).encode() + b" " * 300
            impatient = [asyncio.create_task(post(opened, body)) for _ in range(3)]
            await until(lambda: bodies._waiting.locked())
            for task in impatient:
                task.cancel()
            await asyncio.gather(*impatient, return_exceptions=True)
            patient = asyncio.create_task(post(opened, body))
        async with asyncio.timeout(60):  # whoever held the place has gone
            assert (await patient)[0] == 200
        assert bodies._reserved == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses", "completions"])
async def test_each_http_dialect_gets_a_whole_answer(serving: Serve, saying: Any, path: str, stream: bool) -> None:
    """HTTP/1.0 has no chunks: the end of the connection ends a stream, also if the caller asked to keep it."""
    asked: dict[str, Any] = {"model": "m", "stream": stream, "messages": QUESTION[1:], "max_tokens": 50}
    if path in ("responses", "completions"):
        del asked["messages"], asked["max_tokens"]
        asked["input" if path == "responses" else "prompt"] = "What is 3 * 4?"
    body = json.dumps(asked).encode()
    ends = {
        "chat/completions": b"[DONE]",
        "messages": b"message_stop",
        "responses": b"completed",
        "completions": b"[DONE]",
    }
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        variants = [
            ("1.0",),
            *([("1.0", "Connection: keep-alive")] if stream else []),
            ("1.1", "Connection: close"),
            ("1.1", "Connection: close", "Content-Type: text/plain"),
            ("1.1", "Connection: close", "Content-Type: multipart/form-data; boundary=x"),
            ("1.1", "Connection: close", "Expect: 100-continue"),
        ]
        for version, *headers in variants:
            length = f"Content-Length: {len(body)}"
            with caller(api, opened, body, length, *headers, version=version, path=path) as connection:
                connection.settimeout(60)
                got = await asyncio.to_thread(read_all, connection)
            assert b" 200 OK\r\n" in got, got
            assert (ends[path] if stream else b"Hi.") in got
        assert (await api.record(opened["id"])).session.calls == len(variants)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nested"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f", '
         b'"parameters": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}}]}", 400, "nested"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "not valid JSON"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', 400, "not valid JSON"),
        (b'{"model": "m", "max_tokens": ' + b"9" * 5000 + b"}", 400, "not valid JSON"),
        (b'{"model": "' + b"m" * 1000 + b'"}', 400, "at most 512 characters"),
        (json.dumps(BODY | {"stop": ["x"] * 100}).encode(), 400, "at most 32 texts of at most 256"),
        (json.dumps(BODY | {"stop": "x" * 1000}).encode(), 400, "at most 32 texts of at most 256"),
        (b"[]", 400, "must be a JSON object"),
        (b"", 400, "not valid JSON"),
        (b" " * (9 << 20), 400, "8388608 bytes"),
    ],
)  # fmt: skip
async def test_bodies_that_are_none_are_refused_and_harm_nobody(
    serving: Serve, saying: Any, body: bytes, status: int, word: str
) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        got, told = await post(opened, body)
        assert (got, word in told["error"]["message"]) == (status, True), told
        assert (await post(opened, json.dumps(BODY).encode()))[0] == 200


async def test_a_packed_body_is_no_longer_than_others(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        bomb = gzip.compress(b" " * (200 << 20))
        status, told = await post(opened, bomb, **{"Content-Encoding": "gzip"})
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        packed = gzip.compress(json.dumps(BODY).encode())
        assert (await post(opened, packed, **{"Content-Encoding": "gzip"}))[0] == 200
        status, told = await post(opened, packed[:30] + b"x" * 30, **{"Content-Encoding": "gzip"})
        assert (status, told["error"]["type"]) == (400, "invalid_request_error")


async def test_a_long_request_is_read_where_it_does_not_stop_the_loop(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def objects(value: Any, where: str) -> Any:
        readers.append(threading.current_thread())
        return chat_request.objects(value, where)

    monkeypatch.setattr(chat, "objects", objects)
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        body = b'{"model": "m", "messages": [' + b", ".join([b'{"role": "user"}'] * 450_000) + b"]}"
        status, told = await post(opened, body)
        assert (status, "at most 20000 objects" in told["error"]["message"]) == (400, True)
        assert readers
        assert threading.main_thread() not in readers
        assert (await post(opened, json.dumps(BODY).encode()))[0] == 200


# tokens that are not the session's


async def test_only_admins_open_and_only_keys_of_sessions_call(serving: Serve, saying: Any, tmp_path: Path) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened, signer = await api.open(), TokenSigner.open(tmp_path / "data" / "keys" / "token.key")
        for role in (Role.NODE, Role.ENGINE, Role.ENDPOINT, Role.SESSION):
            token = signer.issue(role, "uid")
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
                for path in ("/v1/sessions", f"/v1/sessions/{opened['id']}/close"):
                    async with http.post(api.url + path, json={"pool": "policy"}) as answer:
                        assert answer.status == 403
                async with http.delete(f"{api.url}/v1/sessions/{opened['id']}") as answer:
                    assert answer.status == 403
            status, _ = await post(opened | {"key": token}, json.dumps(BODY).encode())
            assert status == 403
        for subject in (f"{opened['id']}/other", opened["id"], f"{opened['id']}/", "/"):
            token = signer.issue(Role.SESSION, subject)
            status, _ = await post(opened | {"key": token}, json.dumps(BODY).encode())
            assert status in (403, 410)
        expired = signer.issue(Role.SESSION, "x", expires_at=1.0)
        for key in (expired, "ry1.é.é", "ry1..", "." * 1000):
            status, _ = await post(opened | {"key": key}, json.dumps(BODY).encode())
            assert status == 401
        assert upstream.prompts == []


async def test_ids_are_of_the_whole_server_and_namespaces_keep_theirs(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        await api.open(id="mine")
        for method, path in (("GET", ""), ("POST", "/close"), ("DELETE", "")):
            status, told = await api.ask(method, f"/v1/sessions/mine{path}?namespace=other")
            assert (status, "is in 'default'" in told["message"]) == (404, True)
        status, told = await api.ask("POST", "/v1/sessions?namespace=other", {"pool": "policy", "id": "mine"})
        assert (status, "existing ones: none" in told["message"]) == (422, True), "nor is another's pool there"
        assert (await api.ask("GET", "/v1/sessions?namespace=other"))[1] == {"sessions": []}
        assert (await api.ask("GET", "/v1/sessions/mine?namespace=default"))[0] == 200


# endpoints that do not do


async def test_an_answer_that_cannot_be_used_fails_the_call_and_not_the_session(serving: Serve, saying: Any) -> None:
    """By the model server's fault, which may be mended while the session is open."""
    async with serving() as api, saying("Hi.").serving() as upstream:
        good, upstream.script = upstream.script, lambda number, prompt: [5]  # ends no turn
        api.serve("e", upstream.url)
        opened = await api.open()
        status, told = await post(opened, json.dumps(BODY).encode())
        assert (status, "does not end a turn" in told["error"]["message"]) == (500, True)
        upstream.script = good
        assert (await post(opened, json.dumps(BODY).encode()))[0] == 200
        assert (await api.record(opened["id"])).session.calls == 1


async def test_calls_at_once_wait_for_an_endpoint_together(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_sampler, "WAIT_SECONDS", 1.0)
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        api.endpoints.probed("e", Reason("ConnectionRefused"))
        began = asyncio.get_running_loop().time()
        ended = await asyncio.gather(*(post(opened, json.dumps(BODY).encode()) for _ in range(40)))
        assert {status for status, _ in ended} == {503}
        assert asyncio.get_running_loop().time() - began < 30, "forty times a second is how long it took in turn"


async def test_sessions_opened_at_once_spread_though_the_first_has_to_wait_for_its_template(
    serving: Serve, saying: Any
) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        for id in ("a", "b"):
            api.serve(id, upstream.url)
        await asyncio.gather(*(api.open() for _ in range(10)))
        assert api.index.counts() == {"a": 5, "b": 5}


async def test_a_model_folder_that_was_bad_may_be_better_the_next_time(
    serving: Serve, saying: Any, tmp_path: Path
) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        folder = tmp_path / "model"
        shutil.copytree(api.model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        whole = (folder / "generation_config.json").read_text()
        (folder / "generation_config.json").write_text(whole[: len(whole) // 2])  # still being copied
        api.model = folder
        api.serve("e", upstream.url)
        told = await asyncio.gather(*(api.ask("POST", "/v1/sessions", {"pool": "policy"}) for _ in range(3)))
        assert [(status, "generation_config.json" in body["message"]) for status, body in told] == [(422, True)] * 3
        (folder / "generation_config.json").write_text(whole)
        await api.open()


# who waits to get in


async def test_who_cannot_get_in_is_demand_until_it_does(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        wanted: list[tuple[str, str]] = []
        api.sessions.session_refused.connect(wanted.append)
        for id in ("one", "one", "two"):
            async with api.http.post(f"{api.url}/v1/sessions", json={"pool": "policy", "id": id}) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        other = PoolKey("default", "other")
        assert (wanted, api.sessions.demand(POOL), api.sessions.demand(other)) == ([POOL] * 3, 2, 0)
        api.serve("e", upstream.url)
        await api.open(id="one")
        assert api.sessions.demand(POOL) == 2, "one has got in, and the other may come again"
        api.endpoints.probed("e", Reason("ConnectionRefused"))
        assert api.sessions.demand(POOL) == 2, "an open session needs an endpoint whatever has become of its own"
        await api.record("one", close=True)
        assert api.sessions.demand(POOL) == 1
        monkeypatch.setattr(external_sessions, "UNMET_SECONDS", 0.0)
        await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "two"})
        assert api.sessions.demand(POOL) == 0, "it did not come again"
        monkeypatch.setattr(external_sessions, "NAMELESS_SECONDS", 3600.0)
        for _ in range(300):
            await api.ask("POST", "/v1/sessions", {"pool": "policy"})
        assert api.sessions.demand(POOL) == 256, "no more than could be open"


async def test_a_session_samples_from_no_older_weights_than_it_asks_for(serving: Serve, saying: Any) -> None:
    async with (
        serving(engine={"embedded": {}}, replicas=2) as api,
        saying("Hi.").serving() as old,
        saying("Hi.").serving() as new,
    ):
        api.endpoints.follow_weights(POOL, make.weights("v1", "v2"))
        api.serve("old", old.url, "v1")
        for least, word in (
            ("v2", "that serves 'v2' or a later version is ready; it serves v2"),
            ("v3", "not served version 'v3' yet"),
        ):
            body = {"pool": "policy", "id": "s", "min_weights_version": least}
            status, told = await api.ask("POST", "/v1/sessions", body)
            assert (status, word in told["message"]) == (503, True), told
        assert api.sessions.demand(POOL) == 1
        assert (await api.open(min_weights_version="v1"))["endpoint"] == "old"
        api.serve("new", new.url, "v2")
        opened = await api.open(id="s", min_weights_version="v2")
        assert opened["endpoint"] == "new"
        assert (await post(opened, json.dumps(BODY).encode()))[0] == 200
        api.endpoints.probed("new", Reason("ConnectionRefused"))
        call = asyncio.create_task(post(opened, json.dumps(BODY).encode()))
        session = api.gateway_session("s")
        await until(lambda: session.in_flight)
        api.serve("third", new.url, "v2")
        assert (await call)[0] == 200
        assert (await api.record("s")).session.endpoint == "third"
        assert len(old.prompts) == 0


async def test_weights_of_servers_that_others_run_are_not_known(serving: Serve) -> None:
    async with serving() as api:
        status, told = await api.ask("POST", "/v1/sessions", {"pool": "policy", "min_weights_version": "v1"})
        assert (status, "are external" in told["message"]) == (422, True)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (
            {"autoscaling": {"maxReplicas": 3}},
            r"up to spec.autoscaling.maxReplicas \(3\): try again with the same `id`",
        ),
        ({"replicas": 0}, "spec.replicas is 0: scale the pool up"),
        ({"replicas": 2}, "the pool's conditions show why"),
        ({"replicas": 2, "suspend": True}, "spec.suspend is true"),
    ],
)
async def test_who_cannot_get_in_is_told_what_to_do(serving: Serve, spec: dict[str, Any], word: str) -> None:
    async with serving(engine={"embedded": {}}, **spec) as api:
        status, told = await api.ask("POST", "/v1/sessions", {"pool": "policy"})
        assert (status, told["reason"]) == (503, "ServiceUnavailable")
        assert re.search(word, told["message"])


async def test_closed_sessions_are_kept_up_to_a_bound(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sessions, "MAX_KEPT", 2)
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        for id in ("a", "b"):
            await api.open(id=id)
            await api.record(id, close=True)
        status, told = await api.ask("POST", "/v1/sessions", {"pool": "policy"})
        assert (status, "delete closed ones" in told["message"]) == (429, True)
        await api.ask("DELETE", "/v1/sessions/a")
        await api.open()
