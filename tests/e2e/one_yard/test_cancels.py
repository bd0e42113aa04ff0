"""A cancel at any moment reaches the bottom: no sandbox, no lease and no request at a model server is left, and the queue
goes on. A caller that vanishes leaves nothing either, and its rollouts run on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.support.image_registry import Front
from tests.support.until import until
from tests.support.yard import ROOT, Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(30)]
LONGEST_SECONDS = 4.0
"""Time after its submit at which the last rollout is cancelled: some are queued then, some in each stage, some have ended."""


async def check_nothing_left(yard: Yard, client: AsyncClient, id: str) -> None:
    """Wait until nothing is left, by what the machine and the model servers' metrics say, and run a rollout `id`."""

    async def nothing_left() -> bool:
        top, counts = await client.top(), await client.counts()
        return (
            not any(counts[name] for name in ("queued", "INIT", "RUN", "EVAL"))
            and not any(stage.in_flight for pool in top.rollout_pools for stage in pool.stages.values())
            and not any(one.sessions or one.running for pool in top.inference_pools for one in pool.endpoints)
            and not yard.sandboxes()
        )

    await yard.until(nothing_left, 60.0)
    (after,) = await yard.gather(client, await client.submit(requests(1, 0, prefix=id)))
    assert after.status.scored


@pytest.mark.parametrize("count", [16, pytest.param(100, marks=pytest.mark.long)])
async def test_a_cancel_at_any_moment_leaves_nothing(served: tuple[Yard, AsyncClient], count: int) -> None:
    yard, client = served
    rng = random.Random(count)

    async def cancelled(id: str) -> Status:
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 0.3), rng.uniform(0, LONGEST_SECONDS))))
        first = await client.cancel(id)
        again = await client.cancel(id)
        assert (again.status, again.reward) == (first.status, first.reward)
        return first.status

    ids = await client.submit(requests(count // 2, count // 2, prefix=f"cancel-{count}"))
    statuses = await asyncio.gather(*map(cancelled, ids))
    assert statuses.count(Status.CANCELLED) > count / 2
    assert all(status.terminal for status in statuses)
    await check_nothing_left(yard, client, f"after-{count}")


async def test_a_cancel_while_the_image_is_pulled_leaves_nothing(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    async with Front("nowhere", faults=[("", "hang", 1_000_000)]) as front:
        task = {"kind": "math", "problem": "1+1", "answer": "2", "image": f"docker://{front.host}/hangs:v1"}
        pulling = RolloutRequest.model_validate({"id": "pulling", "pool": "demo", "n": 4, "task": task})
        ids = await client.submit([pulling])
        await until(lambda: front.requests.total())
        assert [(await client.cancel(id)).status for id in ids] == [Status.CANCELLED] * 4
        await check_nothing_left(yard, client, "after-pulling")


async def test_callers_that_vanish_leave_nothing_and_their_rollouts_end(
    served: tuple[Yard, AsyncClient], tmp_path: Path
) -> None:
    yard, client = served
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(one.task.model_dump_json() + "\n" for one in requests(4, 4)))
    words = ["submit", "-f", str(tasks), "--pool", "demo", "--id-prefix", "vanished", "--wait"]
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollyard.cli.main", *words, env=yard.user_env, cwd=ROOT
    )
    ids = [f"vanished-{number}" for number in range(1, 9)]

    async def accepted() -> bool:
        return len([view async for view in client.rollouts() if view.id in ids]) == 8

    try:
        await yard.until(accepted)
        await cut_off(client, *(f"/v1/rollouts/{id}?wait=60" for id in ids), "/v1/rollouts/stream")
    finally:
        command.kill()
        await command.wait()
    assert all(one.status.scored for one in await yard.gather(client, ids))
    await check_nothing_left(yard, client, "after-vanished")


async def cut_off(client: AsyncClient, *paths: str) -> None:
    """Ask for these, and cut the connections while the server has not answered, or goes on answering."""
    server = client.context.current_url().removeprefix("https://")
    host, _, port = server.partition(":")
    for path in paths:
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection(host, int(port), ssl=client.context.tls())
            lines = [f"GET {path} HTTP/1.1", f"Host: {server}", f"Authorization: Bearer {client.context.token}", "", ""]
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
            writer.transport.abort()
