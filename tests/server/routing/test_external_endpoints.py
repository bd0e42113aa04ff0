"""Model servers that others run: added and removed over the real API while the server works, and probed, not believed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.core.errors import Invalid, NotFound
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.routing.endpoint_state import EndpointState
from rollyard.server_process.main import RollyardServer, ServeOptions
from simulation.serving import serve_app
from tests.support.until import until

KEY = ObjectKey(kind="InferencePool", namespace="default", name="policy")
MODEL = {"path": "/models/tiny", "servedName": "tiny"}


class ModelServer:
    """Speaks as much as a probe asks, in the way of vLLM, of SGLang, or of one that gives no ids."""

    def __init__(self, way: str, model: str = "tiny") -> None:
        self.way, self.model = way, model
        self.down = False
        self.asked: list[str] = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ModelServer]:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/{path:.*}", self._post)])
        async with serve_app(app) as url:
            self.url = f"{url}/v1"
            yield self

    async def _models(self, _: web.Request) -> web.Response:
        if self.down:
            return web.Response(status=503)
        return web.json_response({"data": [{"id": self.model}]})

    async def _post(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        body = await request.json()
        if request.path == "/v1/completions":
            ids = {"token_ids": [7]} if self.way == "vllm" and body["return_token_ids"] else {}
            return web.json_response({"choices": [{"text": "x", **ids}]})
        if request.path == "/generate" and self.way == "sglang":
            logprobs = [[-0.5, 7, None]] if body["return_logprob"] else []
            return web.json_response({"text": "x", "meta_info": {"output_token_logprobs": logprobs}})
        return web.Response(status=404)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RollyardServer]:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with contextlib.AsyncExitStack() as stack:
        made = await RollyardServer.start(ServeOptions(tmp_path / "data", cluster="local"), stack)
        await stack.enter_async_context(running(made.run_background()))
        yield made


@pytest.fixture
async def client(server: RollyardServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(kubeconfig=server.data / "admin.kubeconfig") as made:
        yield made


async def pool(client: AsyncClient, **external: Any) -> None:
    spec = {"model": MODEL, "engine": {"external": external}}
    await client.apply(InferencePool.model_validate({"metadata": {"name": "policy"}, "spec": spec}))


def states(server: RollyardServer) -> dict[str, EndpointState]:
    return {s.endpoint.url + "/v1": s for s in server.parts.endpoints.of_pool(PoolKey("default", "policy"))}


async def test_they_come_and_go_while_the_pool_works(server: RollyardServer, client: AsyncClient) -> None:
    await pool(client)
    async with ModelServer("vllm").serving() as one, ModelServer("vllm").serving() as two:
        await client.add_endpoint(KEY, ExternalEndpoint(url=one.url))
        await client.add_endpoint(KEY, ExternalEndpoint(url=two.url, capacity=4))
        await until(lambda: {url for url, s in states(server).items() if s.ready} == {one.url, two.url})
        assert states(server)[two.url].capacity == 4
        stored = await client.get(KEY)
        assert isinstance(stored, InferencePool)
        assert stored.spec.engine.external is not None
        assert [e.url for e in stored.spec.engine.external.endpoints] == [one.url, two.url], "the spec is the owner"
        assert {e.url for e in await client.endpoints(KEY)} == {u.removesuffix("/v1") for u in (one.url, two.url)}
        id = states(server)[two.url].endpoint.id
        server.parts.session_index.pin(RolloutKey("default", "r"), frozenset([id]))
        await client.remove_endpoint(KEY, two.url.removesuffix("/v1"))
        await until(lambda: states(server)[two.url].drain)
        assert server.parts.rebalancer.to_move() == {id: 1}, "what is on it is to go on elsewhere"
        server.parts.session_index.pin(RolloutKey("default", "r"), frozenset())
        await until(lambda: set(states(server)) == {one.url})


async def test_a_person_does_the_same_by_command(server: RollyardServer, client: AsyncClient) -> None:
    await pool(client)

    async def rollyard(*words: str) -> str:
        command = [sys.executable, "-m", "rollyard.cli.main", "endpoints", *words]
        env = {**os.environ, "ROLLYARD_KUBECONFIG": str(server.data / "admin.kubeconfig")}
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT, env=env)
        output, _ = await process.communicate()
        return output.decode()

    async with ModelServer("vllm").serving() as one:
        added = await rollyard("add", "policy", one.url, "--capacity", "2")
        assert added == f"inferencepool/policy: endpoint {one.url} added\n"
        await until(lambda: any(s.ready for s in states(server).values()))
        async with asyncio.timeout(60):
            while "True" not in (shown := await rollyard("list", "policy")):
                pass
        assert shown.splitlines()[1].split()[1:4] == ["True", "0", "2"]
        assert "removed" in await rollyard("remove", "policy", one.url)
        assert "it has: none" in await rollyard("remove", "policy", one.url)


async def test_what_cannot_be_is_refused_in_words(server: RollyardServer, client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client.add_endpoint(KEY, ExternalEndpoint(url="http://nowhere/v1"))
    await pool(client, endpoints=[{"url": "http://127.0.0.1:9/v1"}])
    with pytest.raises(NotFound, match=r"has no endpoint http://other/v1; it has: http://127.0.0.1:9/v1"):
        await client.remove_endpoint(KEY, "http://other/v1")
    await client.remove_endpoint(KEY, "http://127.0.0.1:9/v1")
    own = {"metadata": {"name": "own"}, "spec": {"model": MODEL, "engine": {"embedded": {}}, "replicas": 0}}
    await client.apply(InferencePool.model_validate(own))
    with pytest.raises(Invalid, match=r"raise spec.replicas for more of them"):
        await client.add_endpoint(evolve(KEY, name="own"), ExternalEndpoint(url="http://x/v1"))


@pytest.mark.parametrize(("way", "dialect"), [("vllm", "openai"), ("sglang", "sglang")])
async def test_which_route_gives_token_ids_is_found_out(
    server: RollyardServer, client: AsyncClient, way: str, dialect: str
) -> None:
    async with ModelServer(way).serving() as one:
        await pool(client, endpoints=[{"url": one.url}])
        state = await until(lambda: next((s for s in states(server).values() if s.ready), None))
        assert state.endpoint.dialect == dialect


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (ModelServer("text"), "NoTokenIds: /v1/completions answers without token ids, /generate 404"),
        (ModelServer("vllm", model="other"), "ModelMissing: it serves other, not tiny"),
    ],
)
async def test_one_that_is_of_no_use_says_why(
    server: RollyardServer, client: AsyncClient, made: ModelServer, reason: str
) -> None:
    async with made.serving() as one:
        await pool(client, endpoints=[{"url": one.url}])
        state = await until(lambda: next((s for s in states(server).values() if s.trust.ejected), None))
        assert (state.ready, str(state.reason).startswith(reason)) == (False, True), state.reason


async def test_one_that_fails_is_out_and_comes_back_by_a_probe(server: RollyardServer, client: AsyncClient) -> None:
    async with ModelServer("vllm").serving() as one:
        await pool(client, endpoints=[{"url": one.url}])
        await until(lambda: any(s.ready for s in states(server).values()))
        id = states(server)[one.url].endpoint.id
        server.parts.endpoints.complain(id, "n1", "refused")
        await until(lambda: not states(server)[one.url].trust.suspected)
        assert states(server)[one.url].ready, "a probe found it well"
        one.down = True
        server.parts.endpoints.complain(id, "n1", "refused")
        await until(lambda: not states(server)[one.url].ready)
        one.down = False
        await until(lambda: states(server)[one.url].ready)
