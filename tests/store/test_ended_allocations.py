"""Ended allocations outlive their objects, in a bounded number."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.kinds.base import evolve
from rollyard.store import ended_allocations
from rollyard.store.store import Store
from tests.store.record import ENDED


async def test_each_allocation_is_kept_once_and_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_allocations, "MAX_KEPT", 3)
    store = await Store.open(tmp_path)
    made = [evolve(ENDED, uid=f"u{i}", namespace="ab"[i % 2], ended_at=float(i)) for i in range(5)]
    for one in made:
        await store.ended_allocations.add(one)
    again = evolve(made[4], reason="seen again after a crash", ended_at=9.0)
    await store.ended_allocations.add(again)
    assert await store.ended_allocations.since(0.0) == [again, made[3], made[2]]
    assert await store.ended_allocations.since(3.5) == [again]
    assert await store.ended_allocations.since(0.0, "b") == [made[3]]
    assert await store.ended_allocations.since(0.0, limit=1) == [again]
    await store.close()
