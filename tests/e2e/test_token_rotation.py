"""The server's tokens are renewed while rollouts run."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import Unauthorized
from rollyard.kinds.inference_pool import InferencePool
from rollyard.trust.bearer_tokens import Role, TokenSigner
from tests.support.yard import Yard, ready_yard, requests

pytestmark = pytest.mark.slow(40)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    async with ready_yard(tmp_path_factory, policy={"replicas": 1}, demo={"replicas": 1}) as made:
        yield made


async def endpoint_token(yard: Yard, client: AsyncClient) -> str:
    """The token that the present key gives to callers of the model server."""
    (allocation,) = [a for a in await yard.allocations(client) if a.spec.pool.kind == "InferencePool"]
    return TokenSigner.open(yard.data / "keys" / "token.key").issue(Role.ENDPOINT, allocation.metadata.uid)


async def accepts(yard: Yard, client: AsyncClient, token: str) -> bool:
    pool = await client.get(InferencePool.key_of("default", "policy"))
    assert isinstance(pool, InferencePool)
    tls = ssl.create_default_context(cafile=str(yard.data / "ca.pem"))
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers) as http,
        http.get(f"{pool.status.endpoints[0].url}/v1/models") as answer,
    ):
        return answer.status == 200


async def completed(client: AsyncClient, name: str) -> None:
    ended = await client.wait_many(await client.submit(requests(0, 4, prefix=name)))
    assert all(trajectory.status.scored for trajectory in ended)
    assert {trajectory.attempt for trajectory in ended} == {1}


@pytest.mark.asyncio(loop_scope="module")
async def test_jobs_and_clients_follow_a_rotation_without_an_overlap(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    jobs = {job.id for job in await yard.jobs()}
    old = yard.data / "old.kubeconfig"
    old.write_text((yard.data / "admin.kubeconfig").read_text())
    ids = await client.submit(requests(0, 8, prefix="during"))
    before = await endpoint_token(yard, client)
    assert await accepts(yard, client, before)
    said, _ = await yard.rollyard(
        "token", "rotate", "--overlap", "0s", "--kubeconfig", str(yard.data / "admin.kubeconfig")
    )
    assert said.startswith("tokens rotated: 2 jobs have new ones; earlier tokens are no longer valid\n")
    assert all(t.status.scored for t in await client.wait_many(ids))
    await completed(client, "after")
    after = await endpoint_token(yard, client)
    assert after != before
    await yard.until(lambda: accepts(yard, client, after))
    async with AsyncClient(kubeconfig=old) as stale:
        with pytest.raises(Unauthorized, match="ended with a rotation"):
            await stale.counts(pool="demo")
    yard.kill()
    yard.start()  # node agents and model servers connect again, with their new tokens
    await yard.ready(client)
    await completed(client, "restarted")

    async def refused() -> bool:
        return not await accepts(yard, client, before)

    await yard.until(refused)
    assert await accepts(yard, client, after)
    await completed(client, "later")
    assert {job.id for job in await yard.jobs()} == jobs, "no job was replaced"


@pytest.mark.asyncio(loop_scope="module")
async def test_jobs_follow_a_key_that_was_replaced_by_hand(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    jobs = {job.id for job in await yard.jobs()}
    yard.kill()
    (yard.data / "keys" / "token.key").unlink()
    yard.start()
    await yard.ready(client)
    await completed(client, "by-hand")
    assert {job.id for job in await yard.jobs()} == jobs, "no job was replaced"
