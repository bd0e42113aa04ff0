"""Splits the call of a case into expressions for the sandbox and the comparison around them, which is made outside. Pure.

In the sandbox a solution can forge a comparison: by an object with an `__eq__` of its own, or by a function `abs` of its
own. So if a call compares with a constant, as `f(3) == 9` or `abs(f(2) - 1.41) < 1e-6`, only `f(3)` runs in the sandbox.
Its value crosses as data and is compared outside.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FUNCTIONS: Mapping[str, Any] = {
    f.__name__: f for f in (abs, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple)
}
"""Functions that a constant may use. They are Python's own, whatever the solution defines."""
_LITERAL = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.expr_context,
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    expressions: list[str]
    """Expressions for the sandbox."""
    outside: ast.Expression | None = None
    """Comparison of their values, which have the names `_0`, `_1` and so on. None: the value of the one expression is the
    value of the call."""

    def value(self, value_of: Callable[[int], Any]) -> Any:
        """Compute the call's value. `value_of(i)` returns the value of expression i; it is called when the value is
        needed."""
        if self.outside is None:
            return value_of(0)
        code = compile(ast.fix_missing_locations(self.outside), "the call", "eval")
        return eval(code, {"__builtins__": {}, "math": math, **FUNCTIONS}, _Values(value_of))


class _Values(dict[str, Any]):
    def __init__(self, value_of: Callable[[int], Any]) -> None:
        self._value_of = value_of

    def __missing__(self, name: str) -> Any:
        if not name.startswith("_"):
            raise KeyError(name)  # a name of FUNCTIONS
        return self._value_of(int(name[1:]))


def split(call: str) -> Split:
    """Split the call. A call without a comparison with a constant is one expression."""
    try:
        body = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the image's Python may know more
        return Split([call])
    if not _compares(body):
        return Split([call])
    splitter = _Splitter(call.strip())
    return Split(splitter.expressions, ast.Expression(splitter.outside(body)))


class _Splitter:
    def __init__(self, call: str) -> None:
        self._call = call
        self.expressions: list[str] = []

    def outside(self, node: ast.expr) -> ast.expr:
        """Return the part that is computed outside. The expressions in it are replaced by names."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [self.outside(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _compares(node):
            return ast.UnaryOp(node.op, self.outside(node.operand))
        if isinstance(node, ast.Compare) and _compares(node):
            constant = _constant_beside([node.left, *node.comparators])
            left, *others = [self._operand(part, constant) for part in (node.left, *node.comparators)]
            return ast.Compare(left, node.ops, others)
        if isinstance(node, ast.Call) and _compares(node):
            return ast.Call(node.func, [self._operand(part, _is_constant) for part in node.args], node.keywords)
        return self._inside(node)

    def _operand(self, node: ast.expr, constant: Callable[[ast.expr], bool]) -> ast.expr:
        if constant(node):
            return node
        if isinstance(node, ast.Call) and _is_distance(node):
            return ast.Call(node.func, [self._operand(part, constant) for part in node.args], [])
        if isinstance(node, ast.BinOp) and (_is_distance(node) or _is_difference(node)):
            return ast.BinOp(self._operand(node.left, constant), node.op, self._operand(node.right, constant))
        return self._inside(node)

    def _inside(self, node: ast.expr) -> ast.expr:
        self.expressions.append(f"({ast.get_source_segment(self._call, node)})")
        return ast.Name(f"_{len(self.expressions) - 1}", ast.Load())


def _compares(node: ast.expr) -> bool:
    """Return whether the outermost operator, or one below `and`, `or` and `not`, compares with a constant."""
    if isinstance(node, ast.BoolOp):
        return any(map(_compares, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _compares(node.operand)
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        constant = [*map(_constant_beside(operands), operands)]
        # `3 in Tree(...)` asks an object of the solution's own, so it stays inside
        asked = (is_constant for op, is_constant in zip(node.ops, constant[1:], strict=True) if _is_membership(op))
        return any(constant) and not all(constant) and all(asked)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "math.isclose":
        constant = [*map(_is_constant, node.args)]
        return (
            len(node.args) == 2
            and any(constant)
            and not all(constant)
            and all(_is_constant(k.value) for k in node.keywords)
        )
    return False


def _is_membership(op: ast.cmpop) -> bool:
    return isinstance(op, ast.In | ast.NotIn)


def _is_distance(node: ast.expr) -> bool:
    """Return whether the node is `abs(x - CONSTANT)`, perhaps divided by or multiplied with a constant."""
    if isinstance(node, ast.BinOp):
        return any(_is_constant(a) and _is_distance(b) for a, b in ((node.left, node.right), (node.right, node.left)))
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "abs"
        and len(node.args) == 1
        and _is_difference(node.args[0])
    )


def _is_difference(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and _is_constant(node.left) != _is_constant(node.right)
    )


def _constant_beside(operands: list[ast.expr]) -> Callable[[ast.expr], bool]:
    """Return the test for constants among the operands of one comparison. In `max(1, 2) == 2` the function is the
    solution's, because nothing else there can be."""
    return _is_constant if not all(map(_is_constant, operands)) else _is_literal


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, _LITERAL) and all(map(_is_literal, ast.iter_child_nodes(node)))


def _is_constant(node: ast.AST) -> bool:
    """Return whether the node has only literals, operators and calls of FUNCTIONS."""
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        return named and all(map(_is_constant, node.args))
    return isinstance(node, _LITERAL) and all(map(_is_constant, ast.iter_child_nodes(node)))
