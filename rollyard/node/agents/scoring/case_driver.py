"""Runs the calls of a `code` task inside the EVAL sandbox, each in its own process.

The program runs with the image's own python3 (3.7 or later), so it imports no module of Rollyard. The expected values
are not passed to it.

    python3 -I case_driver.py JOB RESULTS

JOB is {"solution": path, "calls": [...], "case_seconds": limit of one call, "seconds": limit of all calls together}.
RESULTS gets one line for each call: the value as plain JSON, or an empty line if there is no value.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import select
import signal
import sys
import time
import types
from typing import Any

MAX_BYTES = 1 << 18
"""Greatest length of a value in bytes. The JSON of a literal with 16,000 characters is always shorter."""


def main(job_file: str, results_file: str) -> None:
    with open(job_file) as file:
        job = json.load(file)
    end = time.monotonic() + job["seconds"]
    results = []
    for call in job["calls"]:
        results.append(run_call(call, job["solution"], min(end, time.monotonic() + job["case_seconds"])))
    with open(results_file, "wb") as file:
        file.write(b"".join(line + b"\n" for line in results))


def run_call(call: str, path: str, deadline: float) -> bytes:
    """Run the call in a fork. Return the line that the fork wrote, without parsing the line; empty if there is no whole
    line by `deadline`."""
    if time.monotonic() >= deadline:
        return b""
    out, into = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # processes left by earlier calls have used up the sandbox's process limit
        os.close(out)
        os.close(into)
        return b""
    if pid == 0:
        try:
            os.close(out)
            run_in_child(call, path, into)
        finally:
            os._exit(0)
    os.close(into)
    line = read_line(out, deadline)
    os.close(out)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return line


def run_in_child(call: str, path: str, into: int) -> None:
    """Run the call in the present process, a fork, and write the value into the pipe `into`. Output that the solution
    prints is discarded."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    module = types.ModuleType("solution")  # a real module, because dataclasses and pickle look up the module of a class
    module.__file__ = path
    sys.modules["solution"] = module
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [path]
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    line = json.dumps(encode(eval(call, module.__dict__))).encode() + b"\n"
    while line:
        line = line[os.write(into, line) :]


def read_line(fd: int, deadline: float) -> bytes:
    """Return the first line of the pipe; empty if the line is incomplete at `deadline` or too long.

    The end of the pipe is not awaited, because a daemon of the solution may keep the pipe open for ever.
    """
    found = b""
    while len(found) < MAX_BYTES and b"\n" not in found:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(fd, 65536) if ready else b""
        if not chunk:
            break
        found += chunk
    line, whole, _ = found.partition(b"\n")
    return line if whole and len(line) <= MAX_BYTES else b""


def encode(value: Any) -> Any:
    """Encode a value as plain JSON. A value of an unsupported type becomes `{"repr": ...}`, which equals no expected
    value."""
    if value is None or isinstance(value, (str, float)):
        return value
    if hasattr(type(value), "__index__"):  # numpy's integers are no instances of int
        return value if isinstance(value, bool) else operator.index(value)
    if isinstance(value, list):
        return [encode(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(one) for one in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": [encode(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(value[key])] for key in value]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"repr": repr(value)}


if __name__ == "__main__":
    main(*sys.argv[1:])
