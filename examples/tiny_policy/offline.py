"""The tools in-process: arithmetic by walking a syntax tree, and a dictionary for a file system.

Nothing a model wrote is ever executed; only the few forms named here have a meaning. Training and the quick
evaluation use it; the real service runs real tools in a sandbox.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollyard.tasks import tool_results

WRITE = re.compile(r"cat > (\S+) <<'EOF'\n((?:(?!^EOF$).)*)\nEOF\n?", re.DOTALL | re.MULTILINE)
CHECK = re.compile(r"python3 -m py_compile (\S+) && echo OK")

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "sum": sum, "len": len}


class NotOffline(Exception):
    """The source is Python, but in a form that this module does not support."""


def evaluate(source: str, names: Mapping[str, Any] | None = None) -> Any:
    """Evaluate one expression. Raises SyntaxError, NotOffline, or the errors of the arithmetic itself."""
    return _value(ast.parse(source.strip(), mode="eval").body, names or {})


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise NameError(f"name {name!r} is not defined")
        case ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(arg, names) for arg in args))
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=ast.expr() as upper, step=None)):
            return _value(value, names)[: _value(upper, names)]
        case _:
            raise NotOffline(ast.unparse(node))


def call_function(source: str, call: str) -> Any:
    """Evaluate `call` after `source`, one function with one return statement. Raises as `evaluate` does."""
    match ast.parse(source).body:
        case [ast.FunctionDef(name=name, args=args, body=[ast.Return(value=ast.expr() as result)])]:
            parameters = [arg.arg for arg in args.args]
        case _:
            raise NotOffline(source)
    match ast.parse(call, mode="eval").body:
        case ast.Call(func=ast.Name(id=called), args=given) if called == name and len(given) == len(parameters):
            return _value(result, dict(zip(parameters, (_value(value, {}) for value in given), strict=True)))
        case _:
            raise NotOffline(call)


@dataclass
class Toolbox:
    """The files and tools of one trajectory."""

    files: dict[str, str] = field(default_factory=dict)
    cells: int = 0

    def ipython(self, code: str) -> str:
        self.cells += 1
        try:
            return tool_results.ipython_result(repr(evaluate(code)))
        except SyntaxError as error:
            return tool_results.ipython_result(f"  Cell In[{self.cells}], line {_where(error)}")
        except (ArithmeticError, LookupError, NameError, TypeError, ValueError, NotOffline) as error:
            place = f"  Cell In[{self.cells}], line 1\n    {code}"
            return tool_results.ipython_result(
                f"Traceback (most recent call last):\n{place}\n{type(error).__name__}: {error}"
            )

    def bash(self, command: str) -> str:
        if write := WRITE.fullmatch(command):
            self.files[write[1]] = write[2] + "\n"
            return tool_results.bash_result("", 0)
        if check := CHECK.fullmatch(command):
            return self._check(check[1])
        word = (command.split() or [""])[0]
        return tool_results.bash_result(f"bash: {word}: command not found", 127)

    def _check(self, path: str) -> str:
        if path not in self.files:
            return tool_results.bash_result(f"[Errno 2] No such file or directory: {path!r}", 1)
        try:
            with warnings.catch_warnings(action="error", category=SyntaxWarning):  # py_compile prints them
                compile(self.files[path], path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return tool_results.bash_result(f'  File "{path}", line {_where(error)}\n', 1)
        return tool_results.bash_result("OK", 0)

    def passes(self, path: str, cases: Sequence[Mapping[str, str]]) -> bool:
        """Return whether the file at `path` gives the expected value in every case."""
        try:
            return all(repr(call_function(self.files[path], case["call"])) == case["expect"] for case in cases)
        except (KeyError, SyntaxError, ArithmeticError, NameError, TypeError, ValueError, NotOffline):
            return False


def _where(error: SyntaxError) -> str:
    text = (error.text or "").rstrip("\n")
    shown = text.lstrip()
    caret = " " * max(0, (error.offset or 1) - 1 - (len(text) - len(shown))) + "^"
    return f"{error.lineno}\n    {shown}\n    {caret}\nSyntaxError: {error.msg}"
