"""The wiring of a server: no event is told to nobody."""

from __future__ import annotations

from pathlib import Path

from rollyard.aio import Signal
from rollyard.clock import ManualClock
from rollyard.slurm.local import LocalDriver
from rollyard.store.sqlite import SqliteStore
from rollyard.wiring import Parts


async def test_every_event_of_every_part_wakes_somebody(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path)
    parts = Parts(store, LocalDriver(tmp_path / "slurm"), tmp_path, ManualClock())
    events = {
        f"{part}.{name}": event
        for part, made in vars(parts).items()
        for name, event in getattr(made, "__dict__", {}).items()
        if isinstance(event, Signal)
    }
    assert {"agents.agent_changed", "endpoints.capacity_freed", "feed.jobs_changed"} <= events.keys()
    assert [name for name, event in events.items() if not event.has_listeners] == []
    await parts.close()
    await store.close()
