"""Compares the results of a `code` task's calls with the expected values, in a checker process.

Both sides are plain JSON as `case_driver.encode` writes it. None, booleans, numbers, strings and lists are written as
they are; other values as `{"tuple": […]}`, `{"set": […]}`, `{"dict": [[key, value], …]}`, `{"bytes": hex}`,
`{"complex": [re, im]}`, `{"ratio": [numerator, denominator]}`. The results have one line for each call. They are text
that an agent may have written, so they are only ever parsed as JSON.
"""

from __future__ import annotations

import ast
import json
import math
import reprlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rollyard.tasks.scoring.case_comparison import split
from rollyard.tasks.scoring.case_driver import MAX_BYTES, encode
from rollyard.tasks.scoring.checker_process import serve

CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
MAX_NOTES = 10
FREE_ORDER = ("set", "dict")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


class _NoValue(Exception):
    """A call has no value that can be compared. The text says why."""


@dataclass(frozen=True)
class Tolerance:
    """Accepted differences between a float and an expected float, as in `math.isclose`."""

    relative: float = 0.0
    absolute: float = 0.0


def failed_cases(job: bytes, results: bytes) -> dict[str, Any]:
    """Find the result lines that do not match the expected values, and say why: `failed` has their numbers, from 0.

    `job` is JSON: `cases`, a list of [call, expected literal], `relative` and `absolute`, the tolerances. If the number
    of lines differs or a line is too long, all have failed and `bad_results` is 1. The driver never writes such results.
    """
    asked, found = json.loads(job), results.split(b"\n")
    cases, tolerance = asked["cases"], Tolerance(asked["relative"], asked["absolute"])
    if len(found) != len(cases) + 1 or found[-1] or max(map(len, found)) > MAX_BYTES:
        every = list(range(len(cases)))
        return {
            "failed": every,
            "bad_results": 1.0,
            "notes": ["the results are not what the driver of the cases writes"],
        }
    reasons = [why_wrong(call, expect, line, tolerance) for (call, expect), line in zip(cases, found, strict=False)]
    notes = [
        f"case {number} of {len(cases)}, {_cut(call)}: {why}"
        for number, ((call, _), why) in enumerate(zip(cases, reasons, strict=True), start=1)
        if why is not None
    ]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} further cases did not pass either"]
    return {"failed": [number for number, why in enumerate(reasons) if why is not None], "notes": notes}


def why_wrong(call: str, expect: str, line: bytes, tolerance: Tolerance) -> str | None:
    """Return the reason why the line `line` is not the value of the literal; None if it is."""
    try:
        value = _value(call, line)
        if _equal(json.loads(json.dumps(encode(ast.literal_eval(expect)))), value, tolerance):
            return None
        return f"got {_SHORT.repr(_decoded(value))}, expected {_cut(expect)}"
    except _NoValue as why:
        return str(why)
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError, MemoryError):
        return "its result cannot be read"


def _value(call: str, line: bytes) -> Any:
    """Return the call's value in the form of `encode`. Raises _NoValue."""
    found = json.loads(line)
    _raise_error(found)
    parts = split(call)
    if not isinstance(found, list) or len(found) != len(parts.expressions):
        raise ValueError(found)
    if parts.outside is None:
        _raise_error(found[0])
        return found[0]

    def value_of(index: int) -> Any:
        _raise_error(found[index])
        value = _decoded(found[index])
        if isinstance(value, _Opaque):
            raise _NoValue(f"the value of {_cut(parts.expressions[index])} is not plain data: {_SHORT.repr(value)}")
        return value

    try:
        return encode(parts.value(value_of))
    except (TypeError, ArithmeticError) as error:
        raise _NoValue(f"the comparison raises {type(error).__name__}: {error}") from None


def _raise_error(found: Any) -> None:
    if isinstance(found, dict) and isinstance(found.get("error"), str):
        raise _NoValue(found["error"])


class _Opaque:
    """Value of a type that is not compared."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _decoded(found: Any) -> Any:
    """Return the plain Python value of an encoded one."""
    if isinstance(found, list):
        return [_decoded(one) for one in found]
    if not isinstance(found, dict):
        return found
    ((tag, inner),) = found.items()
    if tag == "tuple":
        return tuple(map(_decoded, inner))
    if tag == "set":
        members = map(_decoded, inner)
        return {frozenset(member) if isinstance(member, set) else member for member in members}
    if tag == "dict":
        return {_decoded(key): _decoded(value) for key, value in inner}
    if tag == "bytes":
        return bytes.fromhex(inner)
    if tag == "complex":
        return complex(*inner)
    return Fraction(*inner) if tag == "ratio" else _Opaque(str(inner))


def _equal(a: Any, b: Any, tolerance: Tolerance) -> bool:
    """Compare the expected value with the found one. Types must match, except that an integer may equal a float, and a
    Fraction or Decimal equals the integer of the same value and the float that is nearest to it."""
    if isinstance(b, dict) and b.keys() == {"ratio"} and isinstance(a, int | float) and not isinstance(a, bool):
        exact = Fraction(*b["ratio"])
        return a == exact if isinstance(a, int) else _equal(a, float(exact), tolerance)
    if isinstance(a, float) or isinstance(b, float):
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        return numbers and (a == b or (isinstance(a, float) and _close(a, b, tolerance)))
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(_equal(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(
            _equal(_in_canonical_order(key, a[key]), _in_canonical_order(key, b[key]), tolerance) for key in a
        )
    return bool(a == b)


def _close(a: float, b: float, tolerance: Tolerance) -> bool:
    """Return whether `b` is as near to the expected float `a` as the task allows."""
    return math.isfinite(a) and abs(b - a) <= max(tolerance.relative * abs(a), tolerance.absolute)


def _in_canonical_order(tag: str, value: Any) -> Any:
    """Sort the members of a set or dict by their JSON text, because the order of the members has no meaning. Python sets
    are not used: they cannot hold lists, and an agent could choose values with equal hashes, which make a set slow."""
    return sorted(value, key=json.dumps) if tag in FREE_ORDER and isinstance(value, list) else value


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


if __name__ == "__main__":
    serve(failed_cases, CPU_SECONDS, MEMORY_BYTES)
