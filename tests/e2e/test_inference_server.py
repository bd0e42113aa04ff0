"""The process in an InferencePool's allocation, against a real server."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import parse_object
from tests.support.yard import MODEL, ROOT, Yard, alive, end, endpoint

pytestmark = pytest.mark.slow(40)

WAIT_SECONDS = 60.0


async def apply(client: AsyncClient, **spec: Any) -> None:
    """One InferencePool of one embedded engine, with changes."""
    pool = next(yaml.safe_load_all((ROOT / "examples" / "demo" / "pools.yaml").read_text()))
    pool["metadata"]["namespace"] = "default"
    pool["spec"] = {**pool["spec"], "model": {"path": str(MODEL)}, "replicas": 1, **spec}
    await client.apply(parse_object(pool))


async def pool(client: AsyncClient) -> InferencePool:
    found = await client.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
    assert isinstance(found, InferencePool)
    return found


async def ready(yard: Yard, client: AsyncClient) -> str:
    """The URL of the one endpoint, once it takes work."""

    async def look() -> str | None:
        return next((e.url for e in (await pool(client)).status.endpoints if e.ready), None)

    return str(await yard.until(look))


@dataclass
class Serving:
    yard: Yard
    client: AsyncClient
    url: str

    @property
    def allocation(self) -> Path:
        (folder,) = (self.yard.data / "allocations").iterdir()
        return folder

    def server(self) -> int:
        (pid,) = self.yard.processes("inference-server", "--allocation")
        return pid


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def serving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Shared by the first tests; the last of these ends it."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    try:
        yard.start()
        async with yard.client() as client:
            await apply(client)
            yield Serving(yard, client, await ready(yard, client))
    finally:
        await end(yard)


shared = pytest.mark.asyncio(loop_scope="module")


@shared
async def test_a_proxy_shows_our_certificate_and_accepts_no_other_token(serving: Serving) -> None:
    tls = ssl.create_default_context(cafile=str(serving.yard.data / "ca.pem"))
    token = (serving.allocation / "token").read_text().strip()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as http:
        for headers in ({}, {"Authorization": f"Bearer {token}"}):  # the engine's own token is for the server
            async with http.get(f"{serving.url}/health", headers=headers) as answer:
                assert answer.status == 401


@shared
async def test_a_second_copy_of_the_allocation_is_refused_and_exits(serving: Serving) -> None:
    command = [sys.executable, "-m", "rollyard.cli.main", "inference-server", "--allocation", str(serving.allocation)]
    env = {**os.environ, "SLURM_JOB_ID": "4711", "HOME": str(serving.yard.folder)}
    copy = await asyncio.create_subprocess_exec(*command, env=env, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(copy.communicate(), WAIT_SECONDS)
    assert copy.returncode == 3, said
    assert b"this copy must exit" in said
    assert await ready(serving.yard, serving.client) == serving.url


@shared
async def test_it_finds_a_server_that_moved_and_keeps_its_proxy(serving: Serving) -> None:
    before, server = endpoint(serving.yard.data), serving.server()
    serving.yard.kill()
    serving.yard.start_elsewhere()
    assert endpoint(serving.yard.data) != before
    async with serving.yard.client() as client:
        assert await ready(serving.yard, client) == serving.url
    assert serving.server() == server


@shared
async def test_sigterm_ends_engine_and_job_and_leaves_nothing(serving: Serving, tmp_path: Path) -> None:
    server = serving.server()
    (engine,) = serving.yard.processes("rollyard.engine.embedded")
    scratch = Path(Path(f"/proc/{engine}/cmdline").read_bytes().split(b"\0--uds\0")[1].split(b"\0")[0].decode()).parent
    assert scratch.stat().st_mode & 0o077 == 0
    assert {f.name for f in scratch.iterdir()} == {"lock", "engine.sock"}  # the proxy's key is in memory alone
    (job,) = await serving.yard.jobs()
    os.kill(server, signal.SIGTERM)

    async def ended() -> bool:
        return job.id not in {j.id for j in await serving.yard.jobs()}

    await serving.yard.until(ended)
    (found,) = [j for j in await serving.yard.jobs(live=False) if j.id == job.id]
    assert (found.state, found.exit_code) == ("COMPLETED", 0)
    assert not alive(engine)
    assert not scratch.exists()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    try:
        yard.start()
        async with yard.client() as client:
            yield yard, client
    finally:
        await end(yard)


@pytest_asyncio.fixture(loop_scope="module")
async def failing(shared_yard: tuple[Yard, AsyncClient]) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """A yard without a pool. What the test has applied is deleted."""
    yield shared_yard
    yard, client = shared_yard
    await yard.delete_pools(client)
    await yard.until(lambda: yard.nothing_left(client))


@shared
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"engine": {"embedded": {"maxModelLen": 10_000_000}}}, "--max-model-len must be between"),
        ({"engine": {"vllm": {"python": "/no/python"}}}, "EngineMissing: /no/python cannot be started"),
        ({"allocation": {"scratch": "/no/scratch"}}, "/no/scratch"),
    ],
    ids=["option", "python", "scratch"],
)
async def test_what_keeps_an_engine_from_serving_is_said_in_the_pools_condition(
    failing: tuple[Yard, AsyncClient], spec: dict[str, Any], words: str
) -> None:
    yard, client = failing
    await apply(client, **spec)

    async def told() -> str | None:
        conditions = (await pool(client)).status.conditions
        return next((c.message for c in conditions if c.type == "Ready" and words in c.message), None)

    await yard.until(told)


@shared
async def test_a_template_that_will_not_do_is_said_in_the_pools_condition_before_any_call(
    failing: tuple[Yard, AsyncClient], tmp_path: Path
) -> None:
    yard, client = failing
    model = shutil.copytree(MODEL, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    await apply(client, model={"path": str(model)})
    served: list[str] = []

    async def told() -> str | None:
        status = (await pool(client)).status
        served.extend(e.url for e in status.endpoints if e.ready)
        words = "TemplateUnusable: the chat template fails on a conversation of one question"
        return next((c.message for c in status.conditions if c.type == "Ready" and words in c.message), None)

    await yard.until(told)
    assert served == []


@shared
async def test_an_interpreter_without_vllm_is_a_condition_that_says_what_one_can_do(
    failing: tuple[Yard, AsyncClient],
) -> None:
    yard, client = failing
    await apply(client, engine={"vllm": {"python": sys.executable}})

    async def told() -> bool:
        conditions = {c.type: c for c in (await pool(client)).status.conditions}
        found = conditions.get("Ready")
        return found is not None and found.status == "False" and "has no vLLM; install it there" in found.message

    await yard.until(told)
