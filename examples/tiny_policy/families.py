"""The two task families that the policy knows: arithmetic to compute, one-line functions to write.

A problem belongs to the held-out part by a hash of what has to be worked out, never of its wording, so a held-out
expression is unseen in any wording. Nothing here imports torch.

    python -m examples.tiny_policy.families --kind math --n 8 --seed 1 --held-out
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from dataclasses import dataclass
from typing import Any

from examples.tiny_policy.offline import evaluate

Task = dict[str, Any]

HELD_OUT_ONE_IN = 8

STORIES = [
    ("A farmer fills {a} crates with {b} eggs each and has {c} eggs left. How many eggs are there?", "{a} * {b} + {c}"),
    ("{a} buses carry {b} people each; {c} of them get off. How many people remain?", "{a} * {b} - {c}"),
    ("A tank holds {a} litres. {b} are added and {c} are drained. How many litres are in it?", "{a} + {b} - {c}"),
    ("From {a} metres of rope {b} pieces of {c} metres are cut. How many metres are left?", "{a} - {b} * {c}"),
    ("Each of {a} classrooms has {b} chairs and {c} desks. How many things is that?", "{a} * ({b} + {c})"),
    ("A theatre has {a} rows of {b} seats. How many seats is that?", "{a} * {b}"),
    ("Monday brought {a} letters, Tuesday {b} and Wednesday {c}. How many letters came?", "{a} + {b} + {c}"),
    ("Mia owns {a} stamps and Leo owns {b}. How many stamps do they own together?", "{a} + {b}"),
    ("A train of {a} seats has {b} passengers. How many seats are free?", "{a} - {b}"),
    ("A machine makes {a} parts an hour for {b} hours, then {c} more. How many parts is that?", "{a} * {b} + {c}"),
]
INSTRUCTIONS = [
    ("Take the sum of {a} and {b}.", "{a} + {b}"),
    ("Take {b} away from {a}.", "{a} - {b}"),
    ("Take the product of {a} and {b}, then add {c}.", "{a} * {b} + {c}"),
    ("Take the product of {a} and {b}, then take away {c}.", "{a} * {b} - {c}"),
    ("Add {a} and {b}, then multiply by {c}.", "({a} + {b}) * {c}"),
]
SHAPES = ["{a} {o} {b}", "{a} {o} {b} {p} {c}", "({a} {o} {b}) {p} {c}", "{a} {o} ({b} {p} {c})"]
QUESTIONS = ["What is {e}?", "Compute {e}.", "Work out {e}.", "Find {e}.", "How much is {e}?", "{e} = ?"]

ONE_NUMBER = [
    ("{x} + {a}", "{x} + {a}"),
    ("{x} * {a}", "{x} * {a}"),
    ("{a} - {x}", "{a} - {x}"),
    ("{x} * {a} + {b}", "{x} * {a} + {b}"),
    ("{x} * {a} - {b}", "{x} * {a} - {b}"),
    ("({x} + {a}) * {b}", "({x} + {a}) * {b}"),
    ("{x} increased by {a}", "{x} + {a}"),
    ("{x} reduced by {a}", "{x} - {a}"),
    ("the square of {x}, plus {a}", "{x} * {x} + {a}"),
    ("the remainder of {x} divided by {a}", "{x} % {a}"),
    ("whether {x} is a multiple of {a}", "{x} % {a} == 0"),
    ("whether {x} is above {a}", "{x} > {a}"),
    ("{x}, but no more than {a}", "min({x}, {a})"),
    ("{x}, but no less than {a}", "max({x}, {a})"),
]
TWO_NUMBERS = [
    ("{x} + {y} * {a}", "{x} + {y} * {a}"),
    ("{x} * {y} + {a}", "{x} * {y} + {a}"),
    ("({x} + {y}) * {a}", "({x} + {y}) * {a}"),
    ("{x} minus {y} plus {a}", "{x} - {y} + {a}"),
    ("the larger of {x} and {y}, plus {a}", "max({x}, {y}) + {a}"),
    ("the smaller of {x} and {y}, plus {a}", "min({x}, {y}) + {a}"),
]
ONE_LIST = [
    ("the sum of the list {x}, plus {a}", "sum({x}) + {a}"),
    ("the sum of the list {x}, times {a}", "sum({x}) * {a}"),
    ("the largest number of the list {x}, plus {a}", "max({x}) + {a}"),
    ("the length of the list {x}, times {a}", "len({x}) * {a}"),
    ("the first {a} numbers of the list {x}", "{x}[:{a}]"),
]
REQUESTS = [
    "Write a function `{signature}` in {path} that returns {meaning}.",
    "Create {path} with a function `{signature}` that returns {meaning}.",
    "In {path}, define `{signature}` so that it returns {meaning}.",
    "The file {path} must define `{signature}`, which returns {meaning}.",
]
VERBS = [
    *("f", "g", "h", "apply", "build", "calc", "check", "compute", "convert", "count"),
    *("get", "make", "scale", "score", "shift", "solve", "step", "total", "update"),
]
NOUNS = ["amount", "data", "index", "item", "level", "number", "point", "price", "rate", "result", "size", "value"]
NUMBER_ARGUMENTS = ["a", "b", "k", "m", "n", "x", "y", "num", "val"]
LIST_ARGUMENTS = ["items", "nums", "vals", "xs"]
FILES = ["answer", "app", "code", "main", "solution", "task", "tool", "work"]


@dataclass(frozen=True)
class MathProblem:
    text: str
    expression: str
    """Python source whose value is the answer."""

    @property
    def key(self) -> str:
        return self.expression

    @property
    def answer(self) -> str:
        return str(evaluate(self.expression))

    def task(self) -> Task:
        return {"kind": "math", "problem": self.text, "answer": self.answer}


@dataclass(frozen=True)
class CodeProblem:
    text: str
    path: str
    name: str
    arguments: tuple[str, ...]
    expression: str
    """Python source of the function's return value."""
    inputs: tuple[tuple[Any, ...], ...]
    """One tuple of argument values for each hidden test."""

    @property
    def key(self) -> str:
        return self.source

    @property
    def source(self) -> str:
        return f"def {self.name}({', '.join(self.arguments)}):\n    return {self.expression}"

    def task(self) -> Task:
        return {
            "kind": "code",
            "problem": self.text,
            "solution": self.path,
            "cases": [self._case(i) for i in self.inputs],
        }

    def _case(self, values: tuple[Any, ...]) -> dict[str, str]:
        call = f"{self.name}({', '.join(repr(v) for v in values)})"
        names = dict(zip(self.arguments, values, strict=True))
        return {"call": call, "expect": repr(evaluate(self.expression, names))}


Problem = MathProblem | CodeProblem


def is_held_out(key: str) -> bool:
    return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0


def draw_math(rng: random.Random, held_out: bool) -> MathProblem:
    while True:
        problem = _any_math(rng)
        if is_held_out(problem.key) == held_out:
            return problem


def draw_code(rng: random.Random, held_out: bool) -> CodeProblem:
    while True:
        problem = _any_code(rng)
        if is_held_out(problem.key) == held_out:
            return problem


def sample_math(rng: random.Random, held_out: bool) -> Task:
    return draw_math(rng, held_out).task()


def sample_code(rng: random.Random, held_out: bool) -> Task:
    return draw_code(rng, held_out).task()


def _operand(rng: random.Random) -> int:
    low, high = rng.choices([(2, 9), (10, 99), (100, 999)], weights=[3, 5, 2])[0]
    return rng.randint(low, high)


def _any_math(rng: random.Random) -> MathProblem:
    numbers = {"a": _operand(rng), "b": _operand(rng), "c": _operand(rng)}
    form = rng.random()
    if form < 0.4:
        return _story(rng, numbers)
    if form < 0.5:
        text, expression = rng.choice(INSTRUCTIONS)
        return MathProblem(text.format(**numbers), expression.format(**numbers))
    expression = rng.choice(SHAPES).format(**numbers, o=rng.choice("+-*"), p=rng.choice("+-*"))
    return MathProblem(rng.choice(QUESTIONS).format(e=expression), expression)


def _story(rng: random.Random, numbers: dict[str, int]) -> MathProblem:
    """Make a story about countable things; a number below one would make no sense."""
    while True:
        text, expression = rng.choice(STORIES)
        problem = MathProblem(text.format(**numbers), expression.format(**numbers))
        if int(problem.answer) > 0:
            return problem
        numbers = {name: _operand(rng) for name in numbers}


def _any_code(rng: random.Random) -> CodeProblem:
    bank, names = rng.choices([(ONE_NUMBER, 1), (TWO_NUMBERS, 2), (ONE_LIST, 0)], weights=[6, 2, 2])[0]
    arguments = tuple(rng.sample(NUMBER_ARGUMENTS, names)) if names else (rng.choice(LIST_ARGUMENTS),)
    name = rng.choice(VERBS) + ("_" + rng.choice(NOUNS) if rng.random() < 0.4 else "")
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    meaning, expression = rng.choice(bank)
    if "{x}[" in expression:
        a = rng.randint(2, 9)
    slots = {"x": arguments[0], "y": arguments[-1], "a": a, "b": b}
    path = f"/workspace/{rng.choice(FILES)}.py"
    signature = f"{name}({', '.join(arguments)})"
    text = rng.choice(REQUESTS).format(signature=signature, path=path, meaning=meaning.format(**slots))
    return CodeProblem(text, path, name, arguments, expression.format(**slots), _inputs(names, a))


def _inputs(numbers: int, a: int) -> tuple[tuple[Any, ...], ...]:
    """Return inputs on both sides of the constant, which reveal a wrong comparison or a wrong sign."""
    if numbers == 1:
        return tuple((n,) for n in dict.fromkeys([0, 1, -3, a - 1, a, a + 1, 2 * a, 101]))
    if numbers == 2:
        return ((1, 2), (7, 3), (0, 10), (-4, 50), (a, a + 1))
    return (([3, 1, 2] * 4,), (list(range(40, 9, -1)),), ([a],))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print tasks as JSON lines.")
    parser.add_argument("--kind", choices=["math", "code"], required=True)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="draw from the part that training never sees")
    args = parser.parse_args()
    sample = {"math": sample_math, "code": sample_code}[args.kind]
    rng = random.Random(args.seed)
    for _ in range(args.n):
        print(json.dumps(sample(rng, args.held_out)))


if __name__ == "__main__":
    main()
