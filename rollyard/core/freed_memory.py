"""Reuse of freed memory. By default glibc returns the memory of large buffers to the kernel as soon as they are freed, and
the kernel clears the same pages again for the next buffers. With results of some hundred kilobytes this takes a tenth of a
process's CPU time.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 32 << 20
"""Greatest size of freed memory that glibc keeps."""
LARGE_BYTES = 4 << 20
"""Buffers of at least this size are still returned to the kernel when they are freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep freed memory. Call this function before the process has threads. Without glibc it has no effect."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 1)  # else each thread keeps memory of its own
