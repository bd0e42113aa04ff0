"""Reuse of freed memory. By default glibc returns the memory of large buffers to the kernel as soon as they are freed, and
the kernel clears the same pages again for the next buffers. With results of some hundred kilobytes this takes a tenth of a
process's CPU time.

glibc never returns by itself what lies between memory in use. After a burst, such as of a thousand connections, that may be
most of it.
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


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def return_freed_memory() -> None:
    """Return freed memory to the kernel if it is more than twice KEPT_BYTES. Threads that need memory wait meanwhile: some
    milliseconds for 100 MB. Without glibc 2.33 or newer it has no effect."""
    libc = ctypes.CDLL(None)
    mallinfo2 = getattr(libc, "mallinfo2", None)
    if mallinfo2 is not None:
        mallinfo2.restype = _Mallinfo2
        if mallinfo2().fordblks > 2 * KEPT_BYTES:
            libc.malloc_trim(KEPT_BYTES)
