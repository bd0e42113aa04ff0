"""Which files in memory are a sandbox's."""

from __future__ import annotations

import os
import subprocess
import sys

from rollyard.sandbox.memory_guard.process_memory import own_devices, tmpfs_bytes


def test_the_nodes_own_files_in_memory_are_no_sandboxs() -> None:
    assert own_devices()
    assert tmpfs_bytes(os.getpid()) == 0


def test_a_mount_of_the_node_is_seen_at_once() -> None:
    code = """
import subprocess
from rollyard.sandbox.memory_guard.process_memory import own_devices
before = own_devices()
subprocess.run(["mount", "-t", "tmpfs", "none", "/mnt"], check=True)
during = own_devices()
subprocess.run(["umount", "/mnt"], check=True)
print(len(during - before), own_devices() == before)"""
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", code]
    assert subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout == "1 True\n"
