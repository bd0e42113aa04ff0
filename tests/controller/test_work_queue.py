"""A key waits once, is in one hand at a time, and is never forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.controller.work_queue import WorkQueue


@pytest.fixture
def queue() -> Iterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue(base_seconds=0.01, cap_seconds=0.04)
    yield queue
    queue.close()


async def take(queue: WorkQueue[str]) -> str:
    async with asyncio.timeout(60):
        return await queue.get()


async def test_a_key_added_many_times_waits_once(queue: WorkQueue[str]) -> None:
    for key in "abaab":
        queue.add(key)
    assert [await take(queue), await take(queue)] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_in_hand_comes_again_only_when_it_was_let_go(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0, "nobody else may have it now"
    queue.done("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_of_several_times_the_earliest_counts(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 600)
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_what_was_to_come_later_is_dropped_on_close(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 0.001)
    queue.close()
    await asyncio.sleep(0.01)
    assert len(queue) == 0


async def test_the_back_off_grows_to_its_cap_and_begins_anew_after_success(queue: WorkQueue[str]) -> None:
    delays = [queue.retry("a") for _ in range(200)]
    for delay, most in zip(delays, [0.01, 0.02, *[0.04] * 198], strict=True):
        assert 0 <= delay <= most
    assert max(delays) > 0.02, "jitter is over the whole of it"
    queue.forget("a")
    assert queue.retry("a") <= 0.01
    assert await take(queue) == "a"


async def test_many_workers_never_have_one_key_together(queue: WorkQueue[str]) -> None:
    in_hand: Counter[str] = Counter()
    worked: Counter[str] = Counter()

    async def work() -> None:
        while True:
            key = await queue.get()
            in_hand[key] += 1
            assert in_hand[key] == 1
            worked[key] += 1
            await asyncio.sleep(0)
            in_hand[key] -= 1
            queue.done(key)

    async with asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(work()) for _ in range(8)]
        for _ in range(50):
            for key in "abc":
                queue.add(key)
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while len(queue) or any(in_hand.values()):
                await asyncio.sleep(0)
        for worker in workers:
            worker.cancel()
    assert set(worked) == set("abc")


@given(st.lists(st.tuples(st.sampled_from(["add", "get", "done"]), st.sampled_from("abc")), max_size=40))
def test_every_add_is_followed_by_a_look(steps: list[tuple[str, str]]) -> None:
    """Whatever the order: a key that was added is, in the end, handed out after that."""

    async def go() -> None:
        queue: WorkQueue[str] = WorkQueue()
        owed: set[str] = set()
        held: set[str] = set()

        async def get() -> None:
            key = await queue.get()
            assert key not in held
            held.add(key)
            owed.discard(key)

        def done(key: str) -> None:
            held.discard(key)
            queue.done(key)

        for what, key in steps:
            if what == "add":
                queue.add(key)
                owed.add(key)
            elif what == "get" and len(queue):
                await get()
            elif what == "done" and key in held:
                done(key)
        while len(queue) or held:
            for key in list(held):
                done(key)
            if len(queue):
                await get()
        assert not owed

    asyncio.run(go())
