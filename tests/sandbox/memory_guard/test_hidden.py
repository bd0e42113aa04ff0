"""The memory of a process that hides it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HIDER = """
import ctypes, mmap, sys
held = mmap.mmap(-1, 64 << 20)
held.write(bytes(64 << 20))
ctypes.CDLL(None).prctl(4, int(sys.argv[1]), 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()"""
GUARD = """
import subprocess, sys
from rollyard.sandbox.memory_guard.process_memory import measure
argv = [sys.executable, "-c", *sys.argv[1:]]
with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    print(measure(process.pid).used >> 20)
    process.stdin.close()"""
WITHOUT_CAPABILITIES = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("dumpable", [1, 0])
def test_shared_memory_counts_for_a_guard_of_an_ordinary_user(dumpable: int) -> None:
    argv = [*WITHOUT_CAPABILITIES, sys.executable, "-c", GUARD, HIDER, str(dumpable)]
    used = int(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    assert 64 <= used < 2 * 64
