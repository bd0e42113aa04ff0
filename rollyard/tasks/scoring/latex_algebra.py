"""Compares the values of LaTeX expressions that are not plain numbers. latex2sympy parses the expressions.

Use this module only in a checker process, because an expression can take any amount of time and memory.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from rollyard.core import garbage_search
from rollyard.tasks.scoring.numerals import TOLERANCE

with garbage_search.imports():
    import sympy
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from sympy import Expr

DIGITS = 50
CLOSE = sympy.Float("1e-30")
POINTS, LEAST = 16, 3
"""Expressions with variables are compared at `POINTS` points. If both expressions have real values at `LEAST` or more of
these points, only such points are used."""
_ELEMENTARY = {f"{a}{f}{h}" for f in ("sin", "cos", "tan", "cot", "sec", "csc") for a in ("", "arc") for h in ("", "h")}
_OTHERS = {
    "binom",
    "dbinom",
    "tbinom",
    "lfloor",
    "lceil",
    "gcd",
    "lcm",
    "det",
    "min",
    "max",
    "mod",
    "bmod",
    "sum",
    "prod",
    "int",
    "lim",
}
_UNDONE = (sympy.Integral, sympy.Derivative, sympy.Sum, sympy.Product, sympy.Limit)
_NORMAL = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")


class UnreadableExpression(Exception):
    pass


def read(text: str) -> Expr:
    """Parse the expression without evaluating it. Raises UnreadableExpression."""
    try:
        found = latex2sympy(text, normalization_config=_NORMAL)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # the parser has no exception class of its own
        raise UnreadableExpression(text) from error
    if not isinstance(found, Expr | sympy.Equality):
        raise UnreadableExpression(text)
    return found


def same_expression(reference_text: str, answer_text: str, *, rounded: bool = False) -> bool:
    """Return whether the answer equals the reference, in a form that the reference allows.

    An operator such as \\sum or \\gcd may be in the answer only if it is in the reference too. Apart from this rule, a
    reference with variables allows every equivalent form. If the reference has no variables, the rule applies to
    trigonometric functions too, and the answer may not have more operations than the reference. For an equation, see
    `_same_equation`. `rounded`: the answer is a decimal, so a relative difference of TOLERANCE is accepted. Raises
    UnreadableExpression if the reference cannot be read, or is neither an expression nor an equation.
    """
    reference = read(reference_text)
    try:
        answer = read(answer_text)
    except UnreadableExpression:
        return False
    variables = _variables(reference)
    to_do = _OTHERS if variables else _OTHERS | _ELEMENTARY
    if to_do.intersection(_COMMAND.findall(answer_text)).difference(_COMMAND.findall(reference_text)):
        return False
    if answer.has(*_UNDONE) and not reference.has(*_UNDONE):
        return False
    if isinstance(reference, sympy.Equality) or isinstance(answer, sympy.Equality):
        return _same_equation(reference, answer)
    if not variables and count_operations(answer) > count_operations(reference):
        return False
    return _same_value(_exact(reference), _exact(answer), rounded)


def count_operations(expression: sympy.Basic) -> int:
    """Count the operations that are still to be carried out: sums, powers, roots, functions and products.

    A coefficient or a division by a number does not count: neither 2x nor x/3 has an operation.
    """
    inner = sum(map(count_operations, expression.args))
    if isinstance(expression, sympy.Add):
        return inner + len(expression.args) - 1
    if isinstance(expression, sympy.Mul):
        factors = list(_factors(expression))
        above = [f for f in factors if f.is_Number and abs(f) != 1]
        below = [f for f in factors if _is_inverse(f) and f.args[0].is_Number]
        others = [f for f in factors if not f.is_Number and f not in below]
        return inner + sum(max(0, len(kind) - 1) for kind in (above, below, others))
    if isinstance(expression, sympy.Pow):
        return inner + (not _is_inverse(expression))
    return inner + isinstance(expression, sympy.Function)


def _factors(expression: sympy.Basic) -> Iterator[sympy.Basic]:
    for factor in expression.args:
        if isinstance(factor, sympy.Mul):
            yield from _factors(factor)
        else:
            yield factor


def _is_inverse(expression: sympy.Basic) -> bool:
    return isinstance(expression, sympy.Pow) and expression.args[1] == -1


def _variables(expression: sympy.Basic) -> set[str]:
    return {symbol.name for symbol in expression.free_symbols} - {"i"}


def _exact(expression: Expr) -> Expr:
    """Evaluate the expression, with decimals as fractions and i as the imaginary unit."""
    exact = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    unit = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.xreplace({**exact, **unit}).doit()


def _same_value(reference: Expr, answer: Expr, rounded: bool) -> bool:
    difference = reference - answer
    if difference == 0:
        return True
    if difference.is_Rational and not rounded:
        return False
    close = sympy.Rational(TOLERANCE.numerator, TOLERANCE.denominator) if rounded else CLOSE
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols:
        return _is_negligible(difference, reference, close)
    draw = random.Random(0)
    points = [{s: sympy.Rational(draw.randint(-300, 300), 97) for s in symbols} for _ in range(POINTS)]
    real = [p for p in points if _is_real(reference.subs(p)) and _is_real(answer.subs(p))]
    if reference.has(sympy.Abs) and any(_is_real(reference.subs(p)) for p in points if p not in real):
        return False  # \ln|x| has values where \ln x has none
    used = real if len(real) >= LEAST else points
    return all(_is_negligible(difference.subs(p), reference.subs(p), close) for p in used)


def _is_real(expression: Expr) -> bool:
    return bool(sympy.N(expression, DIGITS).is_real)


def _is_negligible(difference: Expr, reference: Expr, close: Expr) -> bool:
    of, size = sympy.N(difference, DIGITS), sympy.N(reference, DIGITS)
    if not (of.is_number and size.is_number and of.is_finite and size.is_finite):
        return False
    return bool(abs(of) <= close * abs(size)) or bool(abs(of) < CLOSE * CLOSE)


def _same_equation(reference: sympy.Basic, answer: sympy.Basic) -> bool:
    """Return whether both are equations, and the left side minus the right side is the same in both, up to a constant
    factor."""
    if not (isinstance(reference, sympy.Equality) and isinstance(answer, sympy.Equality)):
        return False
    one, other = (_exact(equation.args[0] - equation.args[1]) for equation in (reference, answer))
    symbols = sorted(one.free_symbols, key=str)
    if not symbols or one.free_symbols != other.free_symbols:
        return False
    draw = random.Random(0)
    at = {s: sympy.Rational(draw.randint(-300, 300), 97) for s in symbols}
    there, here = one.subs(at), other.subs(at)
    return bool(here != 0 and there != 0 and _same_value(one * here, other * there, rounded=False))
