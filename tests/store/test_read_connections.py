"""Queries that take long leave connections for the others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

from rollyard.store.read_connections import Readers


async def test_many_costly_queries_delay_no_other_and_a_caller_that_goes_makes_room() -> None:
    readers = Readers([sqlite3.connect(":memory:", check_same_thread=False) for _ in range(4)])
    go, running = threading.Event(), threading.Semaphore(0)

    def costly(db: sqlite3.Connection) -> str:
        running.release()
        assert go.wait(60)
        return "costly"

    asked = [asyncio.create_task(readers.call(costly, costly=True)) for _ in range(50)]
    try:
        for _ in range(2):
            assert await asyncio.to_thread(running.acquire, timeout=60)
        for _ in range(3):
            assert await readers.call(lambda db: db.execute("SELECT 1").fetchone()) == (1,)
        assert not running.acquire(blocking=False), "two at a time"
        for one in asked[2:49]:
            one.cancel()
    finally:
        go.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if one == "costly"] == ["costly"] * 3
    await readers.close()
