"""Compares the results of a `code` task's calls with the expected values, in a checker process.

Both sides are plain JSON as `case_driver.encode` writes it. None, booleans, numbers, strings and lists are written as
they are; other values as `{"tuple": […]}`, `{"set": […]}`, `{"dict": [[key, value], …]}`, `{"bytes": hex}`,
`{"complex": [re, im]}`. The results have one line for each call. They are text that an agent may have written, so they
are only ever parsed as JSON.
"""

from __future__ import annotations

import ast
import json
import math
from typing import Any

from rollyard.node.agents.scoring.case_driver import MAX_BYTES, encode
from rollyard.node.agents.scoring.checker_process import serve

CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
FREE_ORDER = ("set", "dict")


def count_passed(expects: bytes, results: bytes) -> dict[str, float]:
    """Count the result lines that match the expected values (a JSON list of Python literals).

    If the number of lines differs or a line is too long, `passed` is 0 and `bad_results` is 1. The driver never writes
    such results.
    """
    expected, found = json.loads(expects), results.split(b"\n")
    if len(found) != len(expected) + 1 or found[-1] or max(map(len, found)) > MAX_BYTES:
        return {"passed": 0.0, "bad_results": 1.0}
    return {"passed": float(sum(map(matches_literal, expected, found)))}


def matches_literal(expect: str, found: bytes) -> bool:
    """Return whether the line `found` is the value of the literal.

    Types must match, except that an integer may equal a float. Floats may differ by rounding.
    """
    try:
        return _equal(json.loads(json.dumps(encode(ast.literal_eval(expect)))), json.loads(found))
    except (ValueError, RecursionError, MemoryError, OverflowError):  # 10**400 is too large for a float
        return False


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        return numbers and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(*_in_canonical_order(key, a[key], b[key])) for key in a)
    return bool(a == b)


def _in_canonical_order(tag: str, *values: Any) -> list[Any]:
    """Sort the members of sets and dicts by their JSON text, because the order of the members has no meaning. Python
    sets are not used: they cannot hold lists, and an agent could choose values with equal hashes, which make a set
    slow."""
    if tag not in FREE_ORDER:
        return list(values)
    return [sorted(value, key=json.dumps) if isinstance(value, list) else value for value in values]


if __name__ == "__main__":
    serve(count_passed, CPU_SECONDS, MEMORY_BYTES)
