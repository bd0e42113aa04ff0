"""One piece of work at a time, whatever is given up meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollyard.gateway.session.serial_executor import SerialExecutor

LONG = 10


class Piece:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.go.wait(60)
        return "done"


async def begun(piece: Piece) -> None:
    assert await asyncio.to_thread(piece.begun.wait, 60)


async def test_work_that_no_thread_takes_frees_the_turn() -> None:
    executor = ThreadPoolExecutor(1)
    serial = SerialExecutor(executor, LONG)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        await serial.run(lambda: 1, LONG)
    assert not serial.busy
    async with asyncio.timeout(60):
        assert await serial.run(lambda: 2, 1) == 2


@pytest.mark.parametrize("long", [1, LONG])
async def test_work_that_raises_frees_the_turn_and_so_does_what_was_left_for_later(long: int) -> None:
    serial = SerialExecutor(None, LONG)
    with pytest.raises(ZeroDivisionError):
        await serial.run(lambda: 1 / 0, long)
    piece, told = Piece(), []
    running = asyncio.create_task(serial.run(piece, LONG))
    await begun(piece)
    serial.run_soon(lambda: told.append(1))
    serial.run_soon(lambda: told.append(2))
    assert told == []
    piece.go.set()
    assert await running == "done"
    async with asyncio.timeout(60):
        await serial.run(lambda: told.append(3), long)
    assert told == [1, 2, 3]


async def test_what_is_given_up_is_undone_before_the_next_piece() -> None:
    serial, piece, told = SerialExecutor(None, LONG), Piece(), []
    running = asyncio.create_task(serial.run(piece, LONG, told.append))
    await begun(piece)
    waiting = asyncio.create_task(serial.run(lambda: told.append("never"), 1))
    behind = asyncio.create_task(serial.run(lambda: told.append("next"), 1))
    await asyncio.sleep(0)
    running.cancel()
    waiting.cancel()
    for task in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert serial.busy, "its thread works on"
    piece.go.set()
    async with asyncio.timeout(60):
        await behind
    assert told == ["done", "next"]
    assert not serial.busy


async def test_hundreds_of_pieces_given_up_at_any_moment_never_meet_and_lose_nothing() -> None:
    chance, serial = random.Random(5), SerialExecutor(None, LONG)
    inside, held, most = 0, set(), 0
    guard = threading.Lock()

    def take(number: int) -> int:
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        held.add(number)
        with guard:
            inside -= 1
        return number

    async def call(number: int) -> None:
        got = await serial.run(lambda: take(number), chance.choice((1, LONG)), held.discard)
        serial.run_soon(lambda: held.discard(got))

    tasks = [asyncio.create_task(call(number)) for number in range(400)]
    while not all(task.done() for task in tasks):
        chance.choice(tasks).cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(60):
        await serial.run(lambda: None, LONG)
    assert (most, held, serial.busy) == (1, set(), False)
