"""The wiring of a server: no event is told to nobody."""

from __future__ import annotations

from pathlib import Path

from rollyard.core.aio import Signal
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.store import Store
from tests.support.manual_clock import ManualClock


async def test_every_event_of_every_part_wakes_somebody(tmp_path: Path) -> None:
    store = await Store.open(tmp_path)
    parts = Parts(store, LocalDriver(tmp_path / "slurm"), tmp_path, ManualClock())
    events = {
        f"{part}.{name}": event
        for part, made in vars(parts).items()
        for name, event in getattr(made, "__dict__", {}).items()
        if isinstance(event, Signal)
    }
    assert {"node_agents.node_agent_changed", "endpoints.capacity_freed", "feed.jobs_changed"} <= events.keys()
    assert [name for name, event in events.items() if not event._listeners] == []
    await parts.close()
    await store.close()
