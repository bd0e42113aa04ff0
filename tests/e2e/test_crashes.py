"""The table of crashes, with real processes and SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import Unavailable
from rollyard.core.failpoints import POOL_POINTS
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.trajectory import Trajectory
from tests.support.shown import ShownPage, shown_page
from tests.support.yard import Yard, alive, end, endpoint, kill, requests

pytestmark = pytest.mark.slow(100)
IDLE = {"setup": "exec sleep 100000"}
DOWN = ("after-cancel", "after-ended-allocation", "before-allocation-removal", "before-finalizer-removal")
"""The failpoints of a deletion, in their order."""
UP = tuple(point for point in POOL_POINTS if point not in DOWN)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def begun(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client)
            yield yard, client
    finally:
        await end(yard)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def page(begun: tuple[Yard, AsyncClient]) -> AsyncIterator[ShownPage | None]:
    """The page, open while processes are killed; None if there is no browser."""
    yard, client = begun
    await yard.ready(client)
    async with shown_page(yard) as shown:
        yield shown


@pytest_asyncio.fixture(loop_scope="module")
async def whole(begun: tuple[Yard, AsyncClient], page: ShownPage | None) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    """Shared by the tests after which all is whole again, and the page shows it."""
    yard, client = begun
    await yard.ready(client)
    yield begun
    await yard.ready(client)
    if page is not None:
        await page.is_true()


def jobs(replicas: int) -> dict[str, dict[str, Any]]:
    """Return a job that is submitted alone, and an array; they only sleep, for the test that counts jobs."""
    return {
        "policy": {"replicas": 1, "autoscaling": None, "allocation": IDLE},
        "demo": {"replicas": replicas, "allocation": IDLE},
    }


async def under_way(yard: Yard, client: AsyncClient, asked: list[RolloutRequest], least: int) -> list[str]:
    """The ids of new rollouts, once so many of them are done."""
    before = (await client.counts(pool="demo"))["Completed"]
    ids = await client.submit(asked)

    async def look() -> bool:
        return (await client.counts(pool="demo"))["Completed"] >= before + least

    await yard.until(look)
    return ids


async def terminal_ids(client: AsyncClient, ids: list[str]) -> Counter[str]:
    """Every terminal record of these in the stream, up to their number and whatever comes right behind it."""
    seen: Counter[str] = Counter()
    try:
        async with asyncio.timeout(60):
            async for _, trajectory in client.stream():
                seen.update([trajectory.id] if trajectory.id in ids else [])
                if seen.total() >= len(ids):
                    break
    except TimeoutError:
        pass
    return seen


def assert_scored(trajectories: list[Trajectory]) -> None:
    assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}, Counter(
        t.status for t in trajectories
    )
    assert all(t.reward is not None for t in trajectories)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_server_comes_back_elsewhere_adopts_its_jobs_and_loses_nothing(
    whole: tuple[Yard, AsyncClient], page: ShownPage | None
) -> None:
    yard, client = whole
    before = {(job.id, job.start_time) for job in await yard.jobs()}
    ids = await under_way(yard, client, requests(0, 3, n=2, prefix="server"), 2)
    assert len(ids) == 6
    was = endpoint(yard.data)
    yard.kill()
    if page is not None:
        await page.says_not_connected(time.time())
    yard.start_elsewhere()
    assert endpoint(yard.data) != was
    trajectories = await yard.gather(client, ids)
    assert_scored(trajectories)
    assert {(job.id, job.start_time) for job in await yard.jobs()} == before
    seen = await terminal_ids(client, ids)
    assert set(seen) == set(ids)
    assert set(seen.values()) == {1}
    allocations = await yard.allocations(client)
    assert {a.status.job_id for a in allocations} == {id for id, _ in before}


@pytest.mark.long  # test_resume.py kills a node agent, and test_storm.py one amid batches
@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_node_agent_is_replaced_and_its_rollouts_go_to_others(whole: tuple[Yard, AsyncClient]) -> None:
    yard, client = whole
    ids = await under_way(yard, client, requests(0, 4, prefix="agent"), 1)
    victim = yard.processes("node-agent", "--allocation")[0]
    kill(victim)
    assert_scored(await yard.gather(client, ids))
    await yard.ready(client)
    assert not alive(victim)
    assert len([p for p in await yard.jobs() if "-rp" in p.name]) == 2


@pytest.mark.long  # test_storm.py kills a model server amid batches
@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_model_server_costs_no_rollout(whole: tuple[Yard, AsyncClient]) -> None:
    yard, client = whole
    ids = await under_way(yard, client, requests(0, 4, prefix="model"), 1)
    kill(yard.processes("inference-server")[0])
    assert_scored(await yard.gather(client, ids))
    await yard.ready(client)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_sandbox_is_an_attempt_and_never_a_reward(whole: tuple[Yard, AsyncClient]) -> None:
    yard, client = whole
    waiting = asyncio.create_task(yard.gather(client, await client.submit(requests(0, 8, prefix="sandbox"))))
    killed: set[int] = set()
    while len(killed) < 3 and not waiting.done():
        for pid in [pid for pid in yard.sandboxes() if pid not in killed][:1]:
            kill(pid)
            killed.add(pid)
        await asyncio.sleep(0.05)
    assert_scored(await waiting)
    assert len(killed) == 3


@pytest.mark.long  # test_routing_live.py kills an engine under rollouts, tests/engine/process one of a supervisor
@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_engine_is_restarted_by_its_supervisor(whole: tuple[Yard, AsyncClient]) -> None:
    yard, client = whole
    ids = await under_way(yard, client, requests(0, 4, prefix="engine"), 1)
    jobs = {job.id for job in await yard.jobs()}
    old = yard.processes("rollyard.engine.embedded")[0]
    kill(old)
    assert_scored(await yard.gather(client, ids))
    await yard.ready(client)
    assert not alive(old)
    assert {job.id for job in await yard.jobs()} == jobs


@pytest.mark.asyncio(loop_scope="module")
async def test_sandboxes_that_always_die_end_infra_failed_without_a_reward(whole: tuple[Yard, AsyncClient]) -> None:
    yard, client = whole
    await yard.apply(client, demo={"maxAttempts": 2})
    # an agent that goes on until it is killed: on a busy machine a short one ends before its sandbox is found
    forever = {"type": "command", "command": "sleep 100000"}
    (id,) = await client.submit(requests(0, 1, prefix="doomed", agent=forever))
    waiting = asyncio.create_task(yard.gather(client, [id]))
    while not waiting.done():
        for pid in yard.sandboxes():
            kill(pid)
        await asyncio.sleep(0.2)
    (trajectory,) = await waiting
    assert (trajectory.status, trajectory.reward) == (Status.INFRA_FAILED, None)
    assert trajectory.error is not None
    assert trajectory.error.reason in ("SandboxLost", "SandboxStartFailed")
    await yard.apply(client)


async def test_a_server_killed_between_intent_and_record_has_no_second_job_and_no_orphan(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """At every failpoint. Each server continues where the one before was killed, and gets one replica more to make."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(end, yard)
        page: ShownPage | None = None
        for number, point in enumerate(UP):
            yard.start(crash_at=point)
            page = page or await stack.enter_async_context(shown_page(yard))
            async with yard.client() as client:
                await killed(yard, yard.apply(client, **jobs(2 + number)), page)
        yard.start()
        async with yard.client() as client:
            replicas = 2 + len(UP)
            await yard.apply(client, **jobs(replicas))
            await yard.until(lambda: recorded(yard, client, 1 + replicas))
            made = await yard.jobs(live=False)
            assert len(made) == 1 + replicas, "none was made twice, not even for a moment"
            assert {a.status.job_id for a in await yard.allocations(client)} == {job.id for job in made}
            if page is not None:
                await page.is_true()
        yard.stop()

        for point in DOWN:
            yard.start(crash_at=point)
            async with yard.client() as client:
                await killed(yard, yard.delete_pools(client), page)
        yard.start()
        async with yard.client() as client:
            await yard.delete_pools(client)
            await yard.until(lambda: yard.nothing_left(client))
            if page is not None:
                await page.says_nothing_is_left()


async def killed(yard: Yard, asked: Coroutine[Any, Any, None], page: ShownPage | None) -> None:
    """Ask, and wait until the failpoint has killed the server, and the page says so. It may die before all is asked."""
    assert yard.server is not None
    asking = asyncio.create_task(asked)
    try:
        assert await asyncio.to_thread(yard.server.wait, 120) == -signal.SIGKILL
    finally:
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, Unavailable):
            await asking
    if page is not None:
        await page.says_not_connected(time.time())
    yard.stop()


async def recorded(yard: Yard, client: AsyncClient, n: int) -> bool:
    """Return whether so many allocations are seen to run."""
    states = [a.status.job_state for a in await yard.allocations(client)]
    return states == ["RUNNING"] * n
