"""Reads numbers as people write them: 15070, -0.5, 15{,}070, 3/4, 0.\\overline{3}, 1\\frac{1}{2}, 1.507\\times10^4. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_EXPONENT = 400
TOLERANCE = Fraction(1, 10**6)
"""Accepted difference, relative to the reference, if the reference or the answer is a decimal. If the reference
is an integer, `same_number` accepts no difference."""

_SIGN = r"(?P<sign>[+-]?)"
_DIGITS = r"(?:\d+|\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+|\d{1,3}(?: \d{3})+)"
_DECIMAL = rf"{_DIGITS}(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(rf"{_SIGN}(?P<number>{_DECIMAL})")
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?P<number>{_DECIMAL})(?:(?:\\times|\\cdot|\*)10\^(?:\{{(?P<a>[+-]?\d+)\}}|(?P<b>\d))|[eE](?P<c>[+-]?\d+))"
)
_FRACTION = re.compile(
    rf"{_SIGN}(?P<whole>\d+(?=\\frac| ))? ?"
    r"(?:\\frac(?:\{(?P<minus>-?)(?P<a>\d+)\}\{(?P<under>-?)(?P<b>\d+)\}|(?P<c>\d)(?P<d>\d)|(?P<e>\d)\{(?P<f>\d+)\}|\{(?P<g>\d+)\}(?P<h>\d))"
    r"|(?P<x>\d+)/(?P<y>\d+))"
)  # fmt: skip
_REPEATING = re.compile(
    rf"{_SIGN}(?P<whole>{_DIGITS}?)\.(?P<once>\d*)(?:\\overline\{{(?P<a>\d+)\}}|\\(?:dot|bar)\{{(?P<b>\d)\}}|\((?P<c>\d+)\))"
)


@dataclass(frozen=True, slots=True)
class Numeral:
    value: Fraction
    decimal: bool
    """True if the number has a decimal point or a power of ten, and so may have been rounded."""
    worked_out: bool
    """True if nothing is left to compute. A fraction must be in lowest terms, with a denominator above 1. The factor of
    a power of ten must be 0, or at least 1 and below 10."""


def numeral(text: str) -> Numeral | None:
    """Read a text as a number. Return None if the text is more than one number, as in 2+3, or no number, or has an
    exponent beyond MAX_EXPONENT. Only a mixed number such as `1 1/2`, and
    thousands such as `15 070`, may contain a space."""
    if found := _PLAIN.fullmatch(text):
        return Numeral(_with_sign(found["sign"], _decimal(found["number"])), "." in found["number"], True)
    if found := _SCIENTIFIC.fullmatch(text):
        exponent = int(found["a"] or found["b"] or found["c"]) if len(found[0]) < MAX_EXPONENT else MAX_EXPONENT + 1
        if abs(exponent) > MAX_EXPONENT:
            return None
        mantissa = _decimal(found["number"])
        value = mantissa * Fraction(10) ** exponent
        return Numeral(_with_sign(found["sign"], value), True, 1 <= mantissa < 10 or mantissa == 0)
    if found := _FRACTION.fullmatch(text):
        return _fraction(found)
    if found := _REPEATING.fullmatch(text):
        return _repeating(found)
    return None


def same_number(reference: Numeral, answer: Numeral) -> bool:
    """Return whether the answer is worked out and has the value of the reference.

    If the reference is not an integer, and one of the two is a decimal, they may differ by `TOLERANCE`, relative to the
    reference. Otherwise the values must be equal.
    """
    if not answer.worked_out:
        return False
    if reference.value.denominator == 1 or not (reference.decimal or answer.decimal):
        return answer.value == reference.value
    return abs(answer.value - reference.value) <= TOLERANCE * abs(reference.value)


def _fraction(found: re.Match[str]) -> Numeral | None:
    pairs = (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("x", "y"))
    top, bottom = next((int(found[t]), int(found[b])) for t, b in pairs if found[t])
    whole, minus, under = found["whole"], found["minus"], found["under"]
    if bottom == 0 or (whole and (minus or under or top >= bottom)):
        return None
    worked_out = bottom > 1 and math.gcd(top, bottom) == 1 and not ((minus or under) and found["sign"])
    value = Fraction(top, bottom) + int(whole or 0)
    return Numeral(_with_sign(under, _with_sign(minus, _with_sign(found["sign"], value))), False, worked_out)


def _repeating(found: re.Match[str]) -> Numeral:
    """Read a decimal such as 0.1\\overline{6}. It is exact, so it counts as a fraction."""
    once, period = found["once"], found["a"] or found["b"] or found["c"]
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    value = _decimal(found["whole"] or "0") + (int(once or 0) + repeated) / 10 ** len(once)
    return Numeral(_with_sign(found["sign"], value), False, True)


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"\{,\}|\\,|,| ", "", text))


def _with_sign(sign: str | None, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
