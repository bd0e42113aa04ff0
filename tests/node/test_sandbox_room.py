"""How many sandboxes fit into a node agent's job."""

from __future__ import annotations

from rollyard.node.sandbox_room import memory_room, memory_shortage
from rollyard.sandbox.free_memory import whole_memory


def test_there_are_no_more_sandboxes_than_fit_into_the_jobs_memory() -> None:
    assert memory_room(1 << 20, places=100) == 100
    assert memory_room(whole_memory() // 4, places=100) == 3, "a reserve stays free"
    assert memory_room(whole_memory() * 2, places=100) == 1
    assert memory_shortage(1 << 30, 10, 10) == ""
    assert memory_shortage(1 << 30, 6, 10).startswith("has memory for 6 of 10 sandboxes: it has ")
    assert memory_shortage(1 << 30, 6, 10).endswith(" of memory, and each sandbox may take 1.0 GiB")
