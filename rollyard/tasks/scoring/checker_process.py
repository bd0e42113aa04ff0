"""The program of a checker process. It writes the line "ready". Then it reads questions from standard input, and writes
one line for each question.

A question consists of the number of parts, the length of each part (each number has 4 bytes, big-endian), and the
parts. Each question is judged in a fork of this process. So a question that computes for ever, crashes or fills the
memory harms only its own fork. The kernel enforces the limits: CPU time by a signal, memory by failing allocations. The
process ends when its standard input ends.

A large module that few questions need is not imported at the start. The first question that needs it raises `Unprepared`
in its fork. The process then writes `PREPARES`, imports the module for all later forks, and judges the question again.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

Check = Callable[..., Mapping[str, Any]]
PREPARES = "prepares"
_UNPREPARED = {"unprepared": 1.0}


class Unprepared(Exception):
    """The question needs what `prepare` imports."""


def serve(check: Check, cpu_seconds: int, memory_bytes: int, prepare: Callable[[], None] | None = None) -> None:
    """Answer questions with the return value of `check(*parts)`. `prepare` is called when `check` raises Unprepared.

    The answer is `{"too_large": 1.0}` if a question needs too much memory, and `{"died": signal}` if its fork dies.
    The signal is 0 if `check` raises an exception other than MemoryError.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output printed by a library must not be read as a verdict
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _send(replies, "ready")
    while parts := _read_question():
        verdict = _judge_within_limits(check, parts, cpu_seconds, memory_bytes)
        if verdict == _UNPREPARED and prepare is not None:
            _send(replies, PREPARES)
            prepare()
            verdict = _judge_within_limits(check, parts, cpu_seconds, memory_bytes)
        _send(replies, verdict)


def _judge_within_limits(check: Check, parts: Sequence[bytes], cpu_seconds: int, memory_bytes: int) -> Any:
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _set_limit(resource.RLIMIT_AS, memory_bytes)
            _set_limit(resource.RLIMIT_CPU, cpu_seconds)
            os.write(into, json.dumps(_verdict(check, parts)).encode())
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(result) if result else {"died": -os.waitstatus_to_exitcode(status)}


def _verdict(check: Check, parts: Sequence[bytes]) -> Mapping[str, Any]:
    try:
        return check(*parts)
    except MemoryError:
        return {"too_large": 1.0}
    except Unprepared:
        return _UNPREPARED


def _set_limit(kind: int, most: int) -> None:
    """Set the soft limit, and keep it below the inherited hard limit. Slurm passes on the limits of the submitting user.

    At the hard limit of CPU time the kernel sends SIGKILL, even if the soft limit has the same value. Only at a lower
    soft limit does it send SIGXCPU.
    """
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard - 1), hard))


def _read_question() -> list[bytes]:
    """Read the parts of one question; empty at the end of standard input."""
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return []
    count = struct.unpack("!I", head)[0]
    lengths = struct.unpack(f"!{count}I", sys.stdin.buffer.read(4 * count))
    return [sys.stdin.buffer.read(length) for length in lengths]


def _send(replies: TextIO, message: object) -> None:
    print(json.dumps(message), file=replies, flush=True)
