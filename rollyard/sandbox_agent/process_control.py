"""Calls of prctl(2), seccomp(2), and others that Python lacks. Importing `ctypes` takes 3 ms, so this module uses the C
module under it."""

from __future__ import annotations

import _ctypes
import os

PR_SET_DUMPABLE = 4
_LIBC = _ctypes.dlopen("libc.so.6", os.RTLD_NOW)
_PRCTL, _SYSCALL = _ctypes.dlsym(_LIBC, "prctl"), _ctypes.dlsym(_LIBC, "syscall")


def prctl(option: int, first: int, second: int | bytes = 0) -> None:
    """Raises OSError if the kernel refuses. A `second` of bytes is passed as a pointer to them."""
    if _ctypes.call_function(_PRCTL, (option, first, second, 0, 0)):
        raise OSError(f"prctl({option}) failed")


def seccomp(call: int, operation: int, flags: int, program: bytes) -> None:
    """`call`: number of the system call. `program`: struct sock_fprog. Raises OSError if the kernel refuses."""
    if _ctypes.call_function(_SYSCALL, (call, operation, flags, program)):
        raise OSError(f"seccomp({operation}, {flags}) failed")


def system_call(number: int, *arguments: int | bytes) -> int:
    """Return the result. Bytes are passed as a pointer to them. Raises OSError if the kernel refuses."""
    result: int = _ctypes.call_function(_SYSCALL, (number, *arguments))
    if result < 0:
        raise OSError(f"system call {number} failed")
    return result
