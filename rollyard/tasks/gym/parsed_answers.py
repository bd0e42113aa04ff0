"""Parsers that read an answer as data, for data sets that would run it as Python code.

reasoning-gym passes answers to `eval` and to sympy's `parse_expr`, which calls `eval`. There an answer could start programs,
or name the reference: `oracle_answer` was a right answer of `string_insertion`. Right answers are read as before.
"""

from __future__ import annotations

import ast
import builtins
import re
import unicodedata
from importlib import import_module
from typing import Any

import sympy
from sympy.parsing import sympy_parser

LITERALS = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
"""Modules of reasoning-gym 0.1.25 that call `eval` with an answer."""
EXPRESSIONS = ("games.countdown", "games.puzzle24")
"""Modules that call their own `parse_expr` with an answer. Those of `algebra` call `sympy.parse_expr`."""
_ARITHMETIC = re.compile(r"[\w\s+\-*/^().,!]*")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]")
_FUNCTIONS = {"abs", "max", "min", "pow", "sqrt", "cbrt", "root", "ln"}
_EVALUATED = (sympy.Function, sympy.Add, sympy.Mul, sympy.Pow, sympy.Symbol, sympy.Number)
"""Classes of sympy that a formula may name. `Integral`, `Derivative`, `Sum` and the like only write the question down again."""
_parse = sympy_parser.parse_expr


def replace_parsers() -> None:
    """Replace the parsers in all modules of this process that run answers."""
    for name in LITERALS:
        import_module(f"reasoning_gym.{name}").eval = ast.literal_eval  # type: ignore[attr-defined]
    for name in EXPRESSIONS:
        import_module(f"reasoning_gym.{name}").parse_expr = parse_expression  # type: ignore[attr-defined]
    sympy.parse_expr = parse_expression


def parse_expression(text: str, *args: Any, **kwargs: Any) -> Any:
    """Parse as `parse_expr` does. Raises ValueError for a text that is no formula of numbers, symbols and functions."""
    normal = unicodedata.normalize("NFKC", text)
    if not _ARITHMETIC.fullmatch(normal) or _ATTRIBUTE.search(normal):
        raise ValueError("the answer has signs that no formula has")
    for name in re.findall(r"[^\W\d]\w*", normal):
        if not _is_mathematical(name):
            raise ValueError(f"{name!r} is no symbol and no function of a formula")
    return _parse(text, *args, **kwargs)


def _is_mathematical(name: str) -> bool:
    """Return whether a name is a value or an evaluated class of sympy, or a symbol, since nothing else has the name."""
    found = getattr(sympy, name, None)
    if isinstance(found, type):
        return issubclass(found, _EVALUATED)
    known = found is not None or hasattr(builtins, name)
    return name in _FUNCTIONS or isinstance(found, sympy.Expr) or (not known and not name.startswith("__"))
