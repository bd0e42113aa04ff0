"""Waits that end in two ways at once, pauses that end early, and signals with several listeners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from rollyard.core.aio import Signal, Waker, running, wait_or_timeout

LONG = 3600.0


async def _turns(count: int = 5) -> None:
    """Let everybody run who is ready to."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_event_ends_the_wait() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_or_timeout(event, LONG))
    await _turns()
    assert not waiting.done()
    event.set()
    assert await waiting


async def test_an_event_that_is_set_already_takes_no_time() -> None:
    event = asyncio.Event()
    event.set()
    assert await wait_or_timeout(event, 0)
    assert await wait_or_timeout(event, -1)


async def test_the_time_ends_the_wait() -> None:
    assert not await wait_or_timeout(asyncio.Event(), 0.001)
    assert not await wait_or_timeout(asyncio.Event(), 0)
    assert not await wait_or_timeout(asyncio.Event(), -1)


@pytest.mark.parametrize("event_first", [True, False])
async def test_a_cancellation_at_the_same_turn_as_the_event_is_not_lost(event_first: bool) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_or_timeout(event, LONG))
    await _turns()
    if event_first:
        event.set()
        waiting.cancel()
    else:
        waiting.cancel()
        event.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("turns", range(6))
async def test_a_loop_that_is_woken_ends_by_cancelling_it_at_any_turn(turns: int) -> None:
    """The trap of `asyncio.wait_for`: there the loop goes on where the cancellation comes a turn or so after the event."""
    event = asyncio.Event()

    async def loop() -> None:
        while True:
            await wait_or_timeout(event, LONG)
            event.clear()

    looping = asyncio.create_task(loop())
    await _turns()
    event.set()
    await _turns(turns)
    looping.cancel()
    await _turns(10)
    assert looping.cancelled()


async def test_an_event_at_the_turn_at_which_the_time_is_up_counts_as_come() -> None:
    """There `asyncio.timeout` raises TimeoutError."""
    event = asyncio.Event()
    waiting = await _due_together(event, lambda _: event.set())
    assert await waiting


async def test_a_cancellation_at_the_turn_at_which_the_time_is_up_is_not_lost() -> None:
    waiting = await _due_together(asyncio.Event(), asyncio.Task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _due_together(event: asyncio.Event, call: Callable[[asyncio.Task[bool]], object]) -> asyncio.Task[bool]:
    """A wait whose time is up at the same turn of the loop as this call, and after it."""
    waiting = asyncio.create_task(wait_or_timeout(event, 0.01))
    asyncio.get_running_loop().call_later(0.01, call, waiting)
    await asyncio.sleep(0)
    time.sleep(0.02)  # until both are due
    return waiting


async def test_an_event_that_is_set_and_cleared_at_one_turn_has_come() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_or_timeout(event, LONG))
    await _turns()
    event.set()
    event.clear()
    assert await waiting


async def test_the_time_of_a_wait_ends_it_in_a_task_that_cleans_up_after_its_cancellation() -> None:
    came: list[bool] = []

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(LONG)
        finally:
            came.append(await wait_or_timeout(asyncio.Event(), 0.001))

    task = asyncio.create_task(cleans_up())
    await _turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert came == [False]


async def test_a_pause_ends_early_when_woken_and_else_in_time() -> None:
    waker = Waker()
    pausing = asyncio.create_task(waker.pause(LONG))
    await _turns()
    waker.wake()
    assert await pausing
    assert not await waker.pause(0.001)


async def test_a_wake_during_the_work_is_not_lost_and_many_count_as_one() -> None:
    waker, rounds = Waker(), 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            await waker.pause(LONG)
            rounds += 1
            if rounds == 1:
                waker.wake()
                await asyncio.sleep(0)
                waker.wake()

    async with running(loop()):
        await _turns()
        assert rounds == 0
        waker.wake()
        await _turns(10)
        assert rounds == 2


async def test_a_wake_outlives_a_pause_that_was_cancelled() -> None:
    waker = Waker()
    pausing = asyncio.create_task(waker.pause(LONG))
    await _turns()
    waker.wake()
    pausing.cancel()
    await _turns()
    assert pausing.cancelled()
    assert await waker.pause(0)


async def test_what_runs_beside_a_block_has_ended_when_the_block_is_left() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(LONG)
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with running(work()) as task:
        await _turns()
        assert not ended.is_set()
    assert task.cancelled()
    assert ended.is_set()


async def test_what_runs_beside_a_block_ends_with_a_block_that_is_cancelled() -> None:
    async def block(task: list[asyncio.Task[None]]) -> None:
        async with running(asyncio.sleep(LONG)) as beside:
            task.append(beside)
            await asyncio.sleep(LONG)

    tasks: list[asyncio.Task[None]] = []
    running_block = asyncio.create_task(block(tasks))
    await _turns()
    running_block.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_block
    assert tasks[0].cancelled()


async def test_the_result_of_what_ran_beside_a_block_is_there() -> None:
    async def work() -> int:
        return 7

    async with running(work()) as task:
        await asyncio.wait({task})
    assert task.result() == 7


async def test_a_failure_beside_a_block_is_the_blocks_to_look_at() -> None:
    async def work() -> None:
        raise ValueError("of the work")

    async with running(work()) as task:
        await _turns()
    with pytest.raises(ValueError, match="of the work"):
        task.result()


def test_a_signal_reaches_all_listeners_in_order() -> None:
    moved, told = Signal[[str, int]](), list[str]()
    moved.emit("nobody", 0)
    moved.connect(lambda pool, at: told.append(f"first {pool} {at}"))
    moved.connect(lambda pool, at: told.append(f"second {pool} {at}"))
    moved.emit("a", 1)
    moved.emit("b", 2)
    assert told == ["first a 1", "second a 1", "first b 2", "second b 2"]


def test_a_listener_that_fails_hides_neither_the_others_nor_its_failure() -> None:
    changed, told = Signal[[]](), list[str]()

    def fails(why: str) -> None:
        raise ValueError(why)

    changed.connect(lambda: fails("one"))
    changed.connect(lambda: told.append("after one"))
    changed.connect(lambda: fails("two"))
    changed.connect(lambda: told.append("after two"))
    with pytest.raises(ValueError, match="two") as caught:
        changed.emit()
    assert told == ["after one", "after two"]
    assert repr(caught.value.__context__) == "ValueError('one')"


def test_a_failure_of_one_listener_alone_is_raised_as_it_is() -> None:
    changed, told = Signal[[str]](), list[str]()
    changed.connect(lambda pool: told[0])
    changed.connect(told.append)
    with pytest.raises(IndexError):
        changed.emit("a")
    assert told == ["a"]


def test_a_listener_that_is_connected_during_an_emit_hears_the_next() -> None:
    changed, told = Signal[[]](), list[str]()
    changed.connect(lambda: changed.connect(lambda: told.append("late")))
    changed.emit()
    assert told == []
    changed.emit()
    assert told == ["late"]
