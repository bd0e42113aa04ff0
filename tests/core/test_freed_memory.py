"""Memory of freed buffers is used again, and its pages are not cleared by the kernel for each new buffer."""

from __future__ import annotations

import subprocess
import sys

PAGE_FAULTS = """
import resource, sys
from rollyard.core.freed_memory import keep_freed_memory
if sys.argv[1:]: keep_freed_memory()
def work():
    for _ in range(20):
        buffers = [bytes(1 << 20) for _ in range(4)]
        del buffers
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_of_freed_buffers_are_used_again() -> None:
    assert page_faults("keep") < page_faults() / 10


RETURNED = """
from pathlib import Path
from rollyard.core.freed_memory import keep_freed_memory, return_freed_memory
def megabytes():
    return next(int(line.split()[1]) / 1000 for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
keep_freed_memory()
before = megabytes()
buffers = [b"x" * (1 << 20) for _ in range(200)]
last = b"x" * (1 << 20)
del buffers
kept = megabytes()
return_freed_memory()
print(kept - before, megabytes() - before)
"""


def test_freed_memory_below_memory_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True)
    kept, left = map(float, done.stdout.split())
    assert kept > 180, "glibc returns it by itself"
    assert left < 50


def page_faults(*arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS, *arguments], capture_output=True, text=True, check=True)
    return int(done.stdout)
