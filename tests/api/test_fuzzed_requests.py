"""Requests that nobody would write, from a seed: whatever they ask, the answer is not that the server failed."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import random
import re
from typing import Any

import aiohttp
import pytest
from yarl import URL

from rollyard.api import app, query_parameters
from rollyard.kinds.registry import parse_object
from rollyard.trust.bearer_tokens import Role, TokenSigner
from tests.support.outside_api import Api, Serve

ROUTES = [(r.method, r.path, r.handler) for r in app.routes()]
# fmt: off
NAMES = ("policy", "swe", "default", "x", "..", "..%2f..%2fetc", "%00", "x" * 260, "%F0%9F%92%A9", "%C3%28", "a%0d%0ab", "-")
WORDS = ("", "0", "1", "true", "-1", "x", "9" * 30, "9" * 5000, "%C2%B2", "nan", "inf", "1e999", "%00", "default", "a,b",
         "(", "kind", "metadata.x", "-reward", "'", '%22)%20OR%201=1--', "{}", "[" * 999, '{"a":%20"b"}', "-9" + "0" * 18,
         "a%20in%20(", "metadata.name=x", "%ED%A0%80", "All", "Queued", "0.5", "policy", "swe", "!!", "=", "a==b=c")
ODD: tuple[Any, ...] = (None, True, 0, -1, 2**70, -1.5, 1e308, "", "x", "\x00", "\U0001f4a9", "x" * 300, [], {}, [1],
                        {"a": 1}, [[]], "../..", "9" * 50, ["policy"], {"": None})
POOL = {"apiVersion": "rollyard.dev/v1alpha1", "kind": "RolloutPool", "metadata": {"name": "swe", "namespace": "default"},
        "spec": {"inference": {"policy": "policy"}, "replicas": 0}}
SERVED = {"path": "/m", "servedName": "m"}
IDENTITY = {"allocation": "a", "namespace": "default", "uid": "u", "job_id": "1", "restart_count": 0, "instance": "i",
            "node": "n"}
# fmt: on
LEASE = {"namespace": "default", "id": "r", "fence": 1}
BODIES: tuple[Any, ...] = (
    POOL,
    {**POOL, "kind": "InferencePool", "spec": {"model": SERVED, "engine": {"embedded": {}}, "replicas": 1}},
    {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 1}},
    {
        "pool": "swe",
        "id": "r",
        "task": {"kind": "math", "problem": "p", "answer": "1"},
        "sampling": {"temperature": 1.0},
    },
    [
        {
            "pool": "swe",
            "task": {"kind": "code", "problem": "p", "solution": "/s", "cases": [{"call": "f()", "expect": "1"}]},
        }
    ],
    {"rollouts": [{"pool": "swe", "n": 2, "group": "g", "task": {"kind": "math", "problem": "p", "answer": "1"}}]},
    {"pool": "policy", "id": "s", "min_weights_version": "v1"},
    {"version": "v2", "source": {"path": "/m"}},
    {"url": "http://127.0.0.1:2/v1", "capacity": 2},
    {"identity": IDENTITY, "url": "https://h:1", "csr": None},
    {"identity": IDENTITY, "ready": True, "weights_version": "v", "load": {}},
    {"lease": LEASE, "role": "policy", "failed": "e", "why": "w"},
    {"lease": LEASE, "status": "Completed", "reward": 1.0},
    {"name": "e", "pool": "swe", "tasks": 1, "tasks_digest": "0" * 64, "k": 2},
    {"id": "b", "pool": "swe", "n": 2, "target": 1, "tasks": [{"kind": "math", "problem": "p", "answer": "1"}]},
    {"id": "b", "pool": "swe", "n": 2, "step_groups": 2, "dataset": {"name": "d"}},
    {"upto": 1},
    {"ids": ["r.1"], "turn": 1, "n": 1, "pool": "swe"},
    {"preconditions": {"uid": "u"}, "dryRun": ["All"]},
)
HEADERS: tuple[dict[str, str], ...] = (
    {}, {}, {}, {"Content-Encoding": "gzip"}, {"Content-Encoding": "zstd, gzip"}, {"Last-Event-ID": "9" * 5000},
    {"Last-Event-ID": "\u00b2"}, {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}, {"Content-Type": "text/plain"},
    {"Expect": "100-continue"}, {"Expect": "a miracle"}, {"X-Rollyard-Session": "../.."}, {"Range": "bytes=9-1"},
)  # fmt: skip


class Fuzzer:
    """Requests from one seed."""

    def __init__(self, seed: int, tokens: list[str]) -> None:
        self._random = random.Random(seed)
        self._tokens = tokens

    def request(self) -> tuple[str, str, bytes | None, dict[str, str]]:
        chance = self._random
        method, path, handler = chance.choice(ROUTES)
        path = re.sub(r"{(\w+)(?::(\w+))?}", lambda found: found[2] or self._name(found[1]), path)
        taken = [*getattr(handler, "query_parameters", ()), *query_parameters.KUBERNETES, "odd"]
        asked = "&".join(
            f"{chance.choice(taken)}={chance.choice(WORDS)}" for _ in range(chance.choice((0, 0, 1, 1, 2, 3)))
        )
        asked = re.sub(r"(wait|follow|timeoutSeconds|watch)=[^&]*", r"\1=0", asked) if chance.random() < 0.9 else asked
        more = chance.choice(HEADERS)
        if method == "PATCH" and chance.random() < 0.9:
            more = {**more, "Content-Type": "application/merge-patch+json"}
        token = chance.choice(self._tokens)
        headers = {**more, **({"Authorization": f"Bearer {token}"} if token else {})}
        return method, f"{path}?{asked}", self._body() if method != "GET" else None, headers

    def _name(self, part: str) -> str:
        likely = {
            "namespace": "default",
            "plural": self._random.choice(["rolloutpools", "inferencepools", "allocations"]),
        }
        if self._random.random() < 0.7:
            return likely.get(part, self._random.choice(("policy", "swe", "r", "s")))
        return self._random.choice(NAMES)

    def _body(self) -> bytes:
        chance = self._random
        body = json.loads(json.dumps(chance.choice(BODIES)))
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            body = self._changed(body)
        data = json.dumps(body).encode()
        match chance.randrange(12):
            case 0:
                data = bytes(chance.choice(data) for _ in range(chance.randrange(40))) if data else b""
            case 1:
                data = data[: chance.randrange(len(data) + 1)]
            case 2:
                data = data.replace(b'"', b'"\\ud800', 1)
            case 3:
                data = b"[" * chance.choice((10, 300, 100_000)) + data
            case 4:
                data = gzip.compress(data)
        return data

    def _changed(self, value: Any) -> Any:
        """With something odd at some place."""
        chance = self._random
        if isinstance(value, dict) and value and chance.random() < 0.85:
            key = chance.choice(list(value))
            if chance.random() < 0.15:
                return {**value, chance.choice(("odd", "", "\x00", f"{key}s")): chance.choice(ODD)}
            return {**value, key: self._changed(value[key])}
        if isinstance(value, list) and value and chance.random() < 0.8:
            return [self._changed(value[0]), *value[1:]]
        return chance.choice(ODD)


async def asked(
    api: Api, http: aiohttp.ClientSession, one: tuple[str, str, bytes | None, dict[str, str]]
) -> int | None:
    """The status; None for an answer that waits for something."""
    method, path, body, headers = one
    data = io.BytesIO(body) if body is not None else None
    try:
        async with asyncio.timeout(10):
            url = URL(api.url + path, encoded=True)
            async with http.request(method, url, data=data, headers=headers, allow_redirects=False) as found:
                return found.status
    except (TimeoutError, aiohttp.ClientError, ValueError):  # it waits, or was cut off, or aiohttp would not send that
        return None


async def fuzz(serving: Serve, tmp_path: Any, seed: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as api:
        await api.store.objects.create(parse_object(POOL))
        signer = TokenSigner.open(tmp_path / "data" / "keys" / "token.key")
        tokens = (
            [api.admin] * 7
            + [signer.issue(role, "u") for role in (Role.NODE, Role.NODE, Role.ENGINE, Role.ENGINE)]
            + [""]
        )
        fuzzer, answered = Fuzzer(seed, tokens), 0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            for _ in range(count):
                one = fuzzer.request()
                status = await asked(api, http, one)
                answered += status is not None
                # 503 is a state of the pool: no engine is ready
                assert status is None or status < 500 or status == 503, (status, one, caplog.text[-3000:])
        assert answered > count * 0.8
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR and r.name != "aiohttp.server"]


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_odd_request_is_a_fault_of_the_servers(
    serving: Serve, tmp_path: Any, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    await fuzz(serving, tmp_path, seed, 700, caplog)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
async def test_no_odd_request_of_many_is_a_fault_of_the_servers(
    serving: Serve, tmp_path: Any, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    await fuzz(serving, tmp_path, seed, 10_000, caplog)
