"""Compares what a program printed with the expected output, in a checker process. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from rollyard.tasks.scoring.checker_process import serve

CPU_SECONDS = 10
MEMORY_BYTES = 2 << 30
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(rb"[+-]?\d+")
_SHOWN = 80


@dataclass(frozen=True)
class OutputRule:
    """How two outputs are compared. The tolerances are for tokens."""

    compare: str = "tokens"
    relative: float = 0.0
    absolute: float = 0.0


def compare_outputs(job: bytes, expected: bytes, found: bytes) -> dict[str, Any]:
    """`job`: the fields of OutputRule as JSON. The answer has `why`: None if the outputs are equal."""
    return {"why": why_different(OutputRule(**json.loads(job)), expected, found)}


def surely_equal(rule: OutputRule, expected: bytes, found: bytes) -> bool:
    """Return True for outputs that are equal by any rule, which takes no longer than to read them."""
    return found == expected or (rule.compare != "exact" and found.rstrip() == expected.rstrip())


def why_different(rule: OutputRule, expected: bytes, found: bytes) -> str | None:
    if rule.compare == "exact":
        return None if found == expected else _first_difference("byte", list(expected), list(found))
    if rule.compare == "lines":
        return _first_difference("line", _lines(expected), _lines(found))
    wanted, words = expected.split(), found.split()
    for number, (one, other) in enumerate(zip(wanted, words, strict=False), start=1):
        if one != other and not _near(rule, one, other):
            return f"token {number} is {_shown(other)}, expected {_shown(one)}"
    return _other_length("token", len(wanted), len(words))


def _first_difference(what: str, wanted: list[Any], found: list[Any]) -> str | None:
    for number, (one, other) in enumerate(zip(wanted, found, strict=False), start=1):
        if one != other:
            return f"{what} {number} is {_shown(other)}, expected {_shown(one)}"
    return _other_length(what, len(wanted), len(found))


def _other_length(what: str, wanted: int, found: int) -> str | None:
    return None if wanted == found else f"it has {found} {what}s, expected {wanted}"


def _near(rule: OutputRule, wanted: bytes, found: bytes) -> bool:
    """Whether both are numbers, and the found one is as near as the rule allows. Two integers must be equal."""
    if not (rule.relative or rule.absolute) or not (_NUMBER.fullmatch(wanted) and _NUMBER.fullmatch(found)):
        return False
    if _INTEGER.fullmatch(wanted) and _INTEGER.fullmatch(found):
        return wanted.lstrip(b"+") == found.lstrip(b"+")
    one, other = float(wanted), float(found)
    return math.isfinite(one) and abs(one - other) <= max(rule.relative * abs(one), rule.absolute)


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.rstrip().split(b"\n")]


def _shown(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


if __name__ == "__main__":
    serve(compare_outputs, CPU_SECONDS, MEMORY_BYTES)
