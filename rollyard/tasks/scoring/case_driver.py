"""Runs the calls of a `code` task inside the EVAL sandbox, each in its own process.

The program runs with the image's own python3 (3.7 or later), so it imports no module of Rollyard. The expected values
are not passed to it.

    python3 -I case_driver.py JOB RESULTS

JOB is {"solution": path, "calls": [[expression, ...], ...], "case_seconds": limit of one call, "seconds": limit of all
calls together}. RESULTS gets one line of JSON for each call: a list with the value of each expression, or {"error":
text}. In the list, too, {"error": text} stands for an expression that has no value.
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
import traceback
import types
from collections import abc
from typing import Any

MAX_BYTES = 1 << 18
"""Greatest length of a line in bytes. The JSON of a literal with 16,000 characters is always shorter."""
MAX_ERROR_CHARS = 500


def main(job_file: str, results_file: str) -> None:
    with open(job_file) as file:
        job = json.load(file)
    end = time.monotonic() + job["seconds"]
    results = []
    for call in job["calls"]:
        results.append(run_call(call, job["solution"], min(end, time.monotonic() + job["case_seconds"])))
    with open(results_file, "wb") as file:
        file.write(b"".join(line + b"\n" for line in results))


def run_call(expressions: list[str], path: str, deadline: float) -> bytes:
    """Run the expressions in a fork. Return the line that the fork wrote, without parsing the line; the line of an error
    if there is no whole line by `deadline`."""
    began = time.monotonic()
    if began >= deadline:
        return error_line("not run: the calls before it used up the time of all calls")
    out, into = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:  # processes left by earlier calls have used up the sandbox's process limit
        os.close(out)
        os.close(into)
        return error_line(f"not run: the sandbox can start no process: {error}")
    if pid == 0:
        try:
            os.close(out)
            run_in_child(expressions, path, into)
        finally:
            os._exit(0)
    os.close(into)
    line = read_line(out, deadline)
    os.close(out)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if line is None:
        return error_line(f"no value after {deadline - began:.3g} s")
    return line or error_line(how_it_ended(status))


def how_it_ended(status: int) -> str:
    if os.WIFEXITED(status):
        return f"its process ended with exit code {os.WEXITSTATUS(status)} before it had a value"
    return "its process ended before it had a value"


def run_in_child(expressions: list[str], path: str, into: int) -> None:
    """Run the expressions in the present process, a fork, and write the values into the pipe `into`. Output that the
    solution prints is discarded."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    module = types.ModuleType("solution")  # a real module, because dataclasses and pickle look up the module of a class
    module.__file__ = path
    sys.modules["solution"] = module
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [path]
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
        line = json.dumps([value_of(expression, module, path) for expression in expressions]).encode() + b"\n"
    except BaseException as error:  # noqa: BLE001 - the boundary to code of the agent
        line = error_line("the file raises " + described(error, path)) + b"\n"
    if len(line) > MAX_BYTES:
        line = error_line(f"the value has more than {MAX_BYTES} bytes") + b"\n"
    while line:
        line = line[os.write(into, line) :]


def value_of(expression: str, module: types.ModuleType, path: str) -> Any:
    try:
        found = encode(eval(expression, module.__dict__))
        json.dumps(found)
        return found
    except BaseException as error:  # noqa: BLE001 - the boundary to code of the agent
        return {"error": "raises " + described(error, path)}


def described(error: BaseException, path: str) -> str:
    """Format an error as `ValueError: too small (line 3)`. The line is the innermost one of the solution's file."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, message = [error.lineno or 0], str(error.msg)
    else:
        try:
            message = " ".join(str(error).split())
        except BaseException:  # noqa: BLE001 - str() runs code of the agent
            message = ""
    where = f" (line {lines[-1]})" if lines else ""
    return (type(error).__name__ + (": " + message if message else ""))[: MAX_ERROR_CHARS - 20] + where


def error_line(text: str) -> bytes:
    return json.dumps({"error": text[:MAX_ERROR_CHARS]}).encode()


def read_line(fd: int, deadline: float) -> bytes | None:
    """Return the first line of the pipe; empty if the pipe ends before the line or the line is too long, None if the line
    is incomplete at `deadline`.

    The end of the pipe is not awaited, because a daemon of the solution may keep the pipe open for ever.
    """
    found = b""
    while len(found) < MAX_BYTES and b"\n" not in found:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        found += chunk
    line, whole, _ = found.partition(b"\n")
    return line if whole and len(line) <= MAX_BYTES else b""


def encode(value: Any) -> Any:
    """Encode a value as plain JSON.

    Arrays and numpy's scalars count as the lists and numbers that they hold, other sequences such as ranges as lists. A
    Fraction or a Decimal becomes `{"ratio": [numerator, denominator]}`. A value of any other type becomes `{"repr": ...}`,
    which equals no expected value.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(type(value), "tolist"):  # of numpy, torch, pandas and the module array
        plain = value.tolist()
        return encode(plain) if type(plain) is not type(value) else {"repr": repr(value)}
    if isinstance(value, float):
        return value
    if hasattr(type(value), "__index__"):
        return operator.index(value)
    if isinstance(value, tuple):
        return {"tuple": [encode(one) for one in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, abc.Sequence):
        if len(value) > MAX_BYTES:
            return {"repr": repr(value)[:MAX_ERROR_CHARS]}
        return [encode(one) for one in value]
    if isinstance(value, abc.Set):
        return {"set": [encode(one) for one in value]}
    if isinstance(value, abc.Mapping):
        return {"dict": [[encode(key), encode(value[key])] for key in value]}
    ratio = exact_ratio(value)
    return {"repr": repr(value)[:MAX_ERROR_CHARS]} if ratio is None else {"ratio": ratio}


def exact_ratio(value: Any) -> list[int] | None:
    """Return numerator and denominator of a Fraction or a finite Decimal; None for any other value."""
    try:
        if hasattr(type(value), "numerator"):
            return [operator.index(value.numerator), operator.index(value.denominator)]
        if hasattr(type(value), "as_integer_ratio"):
            return [operator.index(part) for part in value.as_integer_ratio()]
    except (TypeError, ValueError, OverflowError):  # NaN and infinities have no ratio
        pass
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
