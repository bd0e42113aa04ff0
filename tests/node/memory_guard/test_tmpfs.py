"""Which files in memory are a sandbox's."""

from __future__ import annotations

import os

from rollyard.node.memory_guard.process_memory import own_devices, tmpfs_bytes


def test_the_nodes_own_files_in_memory_are_no_sandboxs() -> None:
    assert own_devices()
    assert tmpfs_bytes(os.getpid()) == 0
