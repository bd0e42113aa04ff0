"""Sessions of external agents at the real API, in front of a model with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.api.app import build
from rollyard.api.listener import LINGER_SECONDS
from rollyard.core.clock import SystemClock
from rollyard.kinds.registry import parse_object
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.store import Store
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trust.bearer_tokens import Role
from simulation.serving import serve_app
from simulation.upstream import Upstream
from tests.support.outside_api import Api, Serve


@pytest.fixture
def serving(tmp_path: Path, model_dir: Path) -> Serve:
    """serving(connector=None, **spec): an Api, each time on the same data folder; `spec` is for its InferencePool."""

    @asynccontextmanager
    async def start(connector: aiohttp.BaseConnector | None = None, **spec: Any) -> AsyncIterator[Api]:
        async with AsyncExitStack() as stack:
            store, clock = await Store.open(tmp_path / "data"), SystemClock()
            stack.push_async_callback(store.close)
            driver = LocalDriver(tmp_path / "slurm")
            parts = Parts(store, driver, tmp_path / "data", clock, connector=connector)
            stack.push_async_callback(parts.close)
            await parts.sessions.restore()
            services = parts.services()
            services.request_checks.task_kinds |= {"quiz"}
            if not (await store.objects.list_objects("InferencePool", "default"))[0]:
                await store.objects.create(_pool(model_dir, spec))
            options = {"handler_cancellation": True, "auto_decompress": False, "shutdown_timeout": 5}
            options |= {"lingering_time": LINGER_SECONDS}
            app = build(services)
            url = await stack.enter_async_context(serve_app(app, **options))
            for part in (parts.sessions, parts.rebalancer):
                stack.callback(asyncio.create_task(part.run()).cancel)
            admin = parts.signer.issue(Role.ADMIN, "admin")
            api = Api(url, admin, parts, model_dir, app)
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
    """saying(text): a model server that always answers this text."""

    def make(*texts: str, **pace: Any) -> Upstream:
        def script(number: int, prompt: Sequence[int]) -> list[int]:
            return [*template.encode(texts[number % len(texts)]), template.stop_ids[0]]

        return Upstream(script, **pace)

    return make
