"""Sessions of agents outside of sandboxes, at the real API, in front of a model that says what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from outside_api import Api, Serve

from bench.upstream import Upstream
from rollyard.api.app import build
from rollyard.api.placement import SessionPlacement
from rollyard.api.services import Services
from rollyard.clock import SystemClock
from rollyard.gateway.outside import OutsideSessions
from rollyard.inference.endpoints import Endpoints
from rollyard.kinds.registry import parse_object
from rollyard.reconcilers.workspace import Workspace
from rollyard.rollouts.agents import Agents
from rollyard.rollouts.leases import Leases
from rollyard.rollouts.service import Rollouts
from rollyard.store.sqlite import SqliteStore
from rollyard.tokens.template import ChatTemplate
from rollyard.trust.ca import Authority
from rollyard.trust.tokens import Role, TokenSigner


@pytest.fixture
def serving(tmp_path: Path, model_dir: Path) -> Serve:
    """serving(connector=None, **spec): an Api on the same data folder each time; `spec` of its InferencePool."""

    @asynccontextmanager
    async def start(connector: aiohttp.BaseConnector | None = None, **spec: Any) -> AsyncIterator[Api]:
        async with AsyncExitStack() as stack:
            store, clock = await SqliteStore.open(tmp_path / "data"), SystemClock()
            stack.push_async_callback(store.close)
            endpoints, agents = Endpoints(clock), Agents()
            rollouts = Rollouts(store, clock, agents, Leases(clock, 15))
            sessions = OutsideSessions(connector or aiohttp.TCPConnector(limit=0), SessionPlacement(endpoints))
            rollouts.outside, sessions.counted = sessions.held, endpoints.counted
            rollouts.asked_outside = sessions.asked
            endpoints.sessions = sessions.on
            stack.push_async_callback(sessions.shut_down)
            authority = Authority.open(tmp_path / "keys")
            signer = TokenSigner.open(tmp_path / "keys" / "token.key")
            services = Services(
                store=store,
                clock=clock,
                rollouts=rollouts,
                agents=agents,
                endpoints=endpoints,
                sessions=sessions,
                signer=signer,
                authority=authority,
                log_file=Workspace(tmp_path / "data", store.server_id, signer.issue).log_file,
                check_allocation=lambda pool: ((), ()),
                submission=lambda pool, allocations: pytest.fail("nothing is submitted here"),
                task_kinds=frozenset({"code", "math", "quiz"}),
            )
            if not (await store.list_objects("InferencePool", "default"))[0]:
                await store.create(_pool(model_dir, spec))
            runner = web.AppRunner(
                build(services), handler_cancellation=True, access_log=None, auto_decompress=False, shutdown_timeout=5
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            beside = asyncio.create_task(sessions.run())
            stack.callback(beside.cancel)
            host, port = runner.addresses[0][:2]
            admin = signer.issue(Role.ADMIN, "admin")
            api = Api(f"http://{host}:{port}", admin, endpoints, sessions, rollouts, model_dir, agents, store)
            headers = {"Authorization": f"Bearer {admin}"}
            api.http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
            yield api

    return start


def _pool(model: Path, spec: dict[str, Any]) -> Any:
    external = {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}
    return parse_object({
        "apiVersion": "rollyard.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "policy", "namespace": "default"},
        "spec": {"model": {"path": str(model)}, "engine": {"external": external}, **spec},
    })  # fmt: skip


@pytest.fixture(scope="module")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)


@pytest.fixture
def saying(template: ChatTemplate) -> Callable[..., Upstream]:
    """saying(text): a model server that says it."""

    def make(*texts: str, **pace: Any) -> Upstream:
        def script(number: int, prompt: Sequence[int]) -> list[int]:
            return [*template.encode(texts[number % len(texts)]), template.stop_ids[0]]

        return Upstream(script, **pace)

    return make
