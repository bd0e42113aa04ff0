"""Answers that reasoning-gym 0.1.25 rewards though they solve nothing.

Its distance to NaN is no error, its `bool("banana")` is True, `puzzle24` does not compare the numbers with those given, and the
share of right digits in `coin_flip` is 1 for the answer 0. Right answers are not looked at otherwise.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

NONSENSE = "no such answer"
"""Answer that is right nowhere. A data set that gives it the whole reward does not compare."""
_WORD = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*e[-+]?\d+|nan|inf(?:inity)?)(?=[ij]?(?:[^a-z0-9]|$))")
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COIN_TOLERANCE = 1e-4


def refusal(entry: Mapping[str, Any], reference: str | None, answer: str) -> str | None:
    """Say why an answer solves nothing, whatever the library gives; None if the library should score it."""
    if _not_finite(answer) and (reference is None or re.search(r"\d", reference)) and not _not_finite(reference or ""):
        return "it has a number that is not finite"
    check = _CHECKS.get(entry["metadata"].get("source_dataset"))
    return check(entry, answer) if check is not None else None


def _not_finite(text: str) -> bool:
    return any(not math.isfinite(float(word)) for word in _WORD.findall(text.casefold()))


def _halting(entry: Mapping[str, Any], answer: str) -> str | None:
    return None if answer.strip().casefold() == str(entry["answer"]).casefold() else f"it is not {entry['answer']}"


def _coin_flip(entry: Mapping[str, Any], answer: str) -> str | None:
    try:
        difference = abs(float(Fraction(answer.replace(",", ""))) - float(Fraction(entry["answer"].replace(",", ""))))
    except (ValueError, ZeroDivisionError, OverflowError):
        return "it is no number"
    return None if difference <= _COIN_TOLERANCE else "it is another probability"


def _puzzle24(entry: Mapping[str, Any], answer: str) -> str | None:
    used: list[int] = []
    try:
        value = _value(ast.parse(answer.strip(), mode="eval").body, used)
    except (ValueError, SyntaxError, ArithmeticError, MemoryError, RecursionError):
        return "it is no expression of numbers with + - * /"
    if sorted(used) != sorted(entry["metadata"]["numbers"]):
        return "its numbers are not those given"
    return None if value == 24 else "it is not 24"


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """Return the exact value, and collect the numbers. Raises ValueError for anything that is no plain calculation."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return Fraction(_OPERATORS[type(node.op)](_value(node.left, used), _value(node.right, used)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, used)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    raise ValueError(ast.dump(node))


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], str | None]] = {
    "game_of_life_halting": _halting, "coin_flip": _coin_flip, "puzzle24": _puzzle24,
}  # fmt: skip
