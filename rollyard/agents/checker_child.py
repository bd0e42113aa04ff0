"""The inside of a checker process: questions come in on standard input, one verdict a line goes out.

A question is a count of parts and their lengths (each 4 bytes, big-endian), then the parts. Limits are the kernel's: CPU
time by a signal that ends the process, memory by allocations that fail. A reply is [verdict, whether the process ends
now]; it ends with its standard input too.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

GROWN_BYTES = 256 << 20
"""A child that holds so much more than at its start after a question ends, and another is started in its place."""


def serve(check: Callable[..., Mapping[str, float]], cpu_seconds: float, memory_bytes: int) -> None:
    """Answer questions with what `check(*parts)` returns; a question that takes more than the memory is `too_large`."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no verdict
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(resource.RLIMIT_AS, memory_bytes)
    at_start = _resident()
    _say(replies, "ready")
    while parts := _question():
        # RLIMIT_CPU counts whole seconds of the process's life
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + cpu_seconds))
        try:
            verdict = check(*parts)
        except MemoryError:
            verdict = {"too_large": 1.0}
        leaving = _resident() - at_start > GROWN_BYTES
        _say(replies, [verdict, leaving])
        if leaving:
            return


def _limit(kind: int, most: int) -> None:
    """Never above the hard limit that we came with: Slurm hands on the limits of whoever submitted."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _question() -> list[bytes]:
    """Its parts; none at the end of standard input."""
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return []
    count = struct.unpack("!I", head)[0]
    lengths = struct.unpack(f"!{count}I", sys.stdin.buffer.read(4 * count))
    return [sys.stdin.buffer.read(length) for length in lengths]


def _say(replies: TextIO, message: object) -> None:
    print(json.dumps(message), file=replies, flush=True)


def _resident() -> int:
    """Bytes of memory this process holds now. (ru_maxrss survives exec: it is the node agent's.)"""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
