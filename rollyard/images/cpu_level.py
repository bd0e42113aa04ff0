"""Level of an x86-64 CPU, 1 to 4, as compilers and images name it: `amd64/v3` needs a CPU of level 3.

The levels are those of the x86-64 psABI, section "Micro-Architecture Levels"; the flags are Linux's names.
"""

from __future__ import annotations

import functools
from collections.abc import Set
from pathlib import Path

_NEEDED = {
    2: {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
    3: {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    4: {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


def level_of(flags: Set[str]) -> int:
    level = 1
    while level + 1 in _NEEDED and flags >= _NEEDED[level + 1]:
        level += 1
    return level


@functools.cache
def cpu_level() -> int:
    """Return the level of this machine's CPU; 1 for one of another architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return level_of(set(next((line.split() for line in lines if line.startswith("flags")), [])))
