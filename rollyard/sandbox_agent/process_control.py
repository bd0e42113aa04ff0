"""Calls of prctl(2). Importing `ctypes` takes 3 ms, so this module uses the C module under it."""

from __future__ import annotations

import _ctypes
import os

PR_SET_DUMPABLE = 4
_FUNCTION = _ctypes.dlsym(_ctypes.dlopen("libc.so.6", os.RTLD_NOW), "prctl")


def prctl(option: int, first: int, second: int | bytes = 0) -> None:
    """Raises OSError if the kernel refuses. A `second` of bytes is passed as a pointer to them."""
    if _ctypes.call_function(_FUNCTION, (option, first, second, 0, 0)):
        raise OSError(f"prctl({option}) failed")
