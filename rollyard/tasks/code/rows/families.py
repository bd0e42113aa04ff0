"""The families of rows: how a row's fields tell them, and how they become fields of a task."""

from __future__ import annotations

import ast
import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rollyard.tasks.rows.dataset_row import DatasetRow, RowRefused
from rollyard.tasks.scoring.case_comparison import split

Fields = dict[str, Any]
"""Fields of a task of the kind `code`."""
SOLUTION = "/workspace/solution.py"
_PROGRAM = f"Write a Python program to {SOLUTION}. It reads from standard input and prints to standard output."
_FUNCTION = f"Write your solution to {SOLUTION}."
_MOST_UNPACKED = 64 << 20
_OF_A_TEXT = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})
"""Opcodes of pickles around a text."""
_PYTHON3 = 3
"""Number of the language in CodeContests."""


@dataclass(frozen=True)
class CodeFamily:
    name: str
    fields: tuple[str, ...]
    """Fields that tell a row of the family."""
    convert: Callable[[DatasetRow], Fields]
    """Pure. Raises RowRefused."""


def _live_code_bench(row: DatasetRow) -> Fields:
    tests = [*_tests_in(row, "public_test_cases"), *_tests_in(row, "private_test_cases")]
    name = row.mapping("metadata").get("func_name") if row.has("metadata") else None
    if name is None:
        return _program(row.text("question_content"), ((test["input"], test["output"]) for test in tests))
    cases = []
    for test in tests:
        arguments = [_value(line) for line in test["input"].splitlines() if line.strip()]
        cases.append(_call(f"Solution().{name}", arguments, _value(test["output"])))
    return _function(f"{row.text('question_content')}\n\n{row.text_or_empty('starter_code')}", cases)


def _code_contests(row: DatasetRow) -> Fields:
    sets = [row.mapping(name) for name in ("public_tests", "private_tests", "generated_tests") if row.has(name)]
    made = _program(
        row.text("description"), ((i, o) for one in sets for i, o in zip(one["input"], one["output"], strict=True))
    )
    limit = row.get("time_limit")
    if isinstance(limit, dict):
        made["case_seconds"] = limit.get("seconds", 0) + limit.get("nanos", 0) / 1e9
    if row.has("memory_limit_bytes"):
        made["case_memory"] = str(row["memory_limit_bytes"])
    if row.has("solutions"):
        found = row.mapping("solutions")
        right = (text for number, text in zip(found["language"], found["solution"], strict=True) if number == _PYTHON3)
        made["reference"] = next(right, None)
    return made


def _codeforces(row: DatasetRow) -> Fields:
    if row.has("interaction_format"):
        raise RowRefused("it is interactive, and the row has no interactor")
    if row.has("generated_checker"):
        raise RowRefused("it has many right outputs, and its checker is a program of another form")
    if row.get("official_tests_complete") is False:
        raise RowRefused("its official tests are not complete")
    parts = [row.text("description")]
    parts += [
        f"{head}\n{row[name]}"
        for head, name in (("Input", "input_format"), ("Output", "output_format"))
        if row.has(name)
    ]
    made = _program("\n\n".join(parts), ((test["input"], test["output"]) for test in row["official_tests"]))
    if row.has("time_limit"):
        made["case_seconds"] = row["time_limit"]
    if row.has("memory_limit"):
        made["case_memory"] = f"{int(row['memory_limit'])}M"
    return made


def _taco(row: DatasetRow) -> Fields:
    tests, question = row.mapping("input_output"), row.text("question")
    inputs, outputs = tests["inputs"], tests["outputs"]
    if name := tests.get("fn_name"):
        starter = row.text_or_empty("starter_code")
        function = f"Solution().{name}" if "class Solution" in starter else name
        wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
        values = [output[0] for output in outputs] if wrapped else outputs
        cases = [_call(function, arguments, value) for arguments, value in zip(inputs, values, strict=True)]
        made = _function(f"{question}\n\n{starter}", cases)
    else:
        made = _program(question, ((_text(i), _text(o)) for i, o in zip(inputs, outputs, strict=True)))
    if row.has("solutions"):
        made["reference"] = next(iter(row.names("solutions")), None)
    return made


def _human_eval(row: DatasetRow) -> Fields:
    name = row.text("entry_point")
    check = next(
        (n for n in _parsed(row.text("test")).body if isinstance(n, ast.FunctionDef) and n.name == "check"), None
    )
    if check is None:
        raise RowRefused("its field `test` has no function check")
    cases = _asserted(check.body, {"candidate": name})
    prompt = row.text("prompt")
    made = _function(f"Complete this Python code.\n\n{prompt}", cases)
    return {**made, "reference": prompt + row.text_or_empty("canonical_solution") or None}


def _mbpp(row: DatasetRow) -> Fields:
    if row.has("test_setup_code"):
        raise RowRefused("its tests need code of their own (`test_setup_code`)")
    tests = row.names("test_list")
    cases = _asserted([node for test in tests for node in _parsed(test).body], {})
    problem = row.text("prompt" if row.has("prompt") else "text")
    made = _function(f"{problem}\n\nIt must pass tests such as: {tests[0]}", cases)
    return {**made, "reference": row.text("code")}


def _big_code_bench(row: DatasetRow) -> Fields:
    tests = row.text("test")
    if "__main__" in tests:
        raise RowRefused("its tests change names of the module __main__, in which they run in this set alone")
    # in this set the tests follow the solution in its file, so they use the modules that it imports
    made = _tested(row.text("instruct_prompt"), f"from solution import *\n{tests}", "unittest")
    return {**made, "reference": row.text("code_prompt") + row.text("canonical_solution")}


def _kodcode(row: DatasetRow) -> Fields:
    return {**_tested(row.text("question"), row.text("test"), "pytest"), "reference": row.text("solution")}


FAMILIES = (
    CodeFamily("livecodebench", ("question_content", "public_test_cases"), _live_code_bench),
    CodeFamily("codeforces", ("description", "official_tests"), _codeforces),
    CodeFamily("code-contests", ("description", "public_tests"), _code_contests),
    CodeFamily("taco", ("question", "input_output"), _taco),
    CodeFamily("bigcodebench", ("instruct_prompt", "code_prompt", "test"), _big_code_bench),
    CodeFamily("kodcode", ("question", "solution", "test"), _kodcode),
    CodeFamily("humaneval", ("prompt", "test", "entry_point"), _human_eval),
    CodeFamily("mbpp", ("test_list", "code"), _mbpp),
)
"""The first one whose fields a row has is the row's. APPS has the fields of TACO."""
NAMES = tuple(family.name for family in FAMILIES)


def family_of(row: DatasetRow, name: str | None) -> CodeFamily:
    """Return the family of this name, or the one that the row's fields tell. Raises RowRefused."""
    for family in FAMILIES:
        if family.name == name or (name is None and row.has(*family.fields)):
            return family
    raise RowRefused(
        f"no family has rows with the fields {', '.join(sorted(row)) or '(none)'}; choose with --family one of "
        f"{', '.join(NAMES)}"
    )


def _program(problem: str, tests: Iterable[tuple[str, str]]) -> Fields:
    cases = [{"input": i, "output": o} for i, o in tests]
    return {"problem": f"{problem}\n\n{_PROGRAM}", "solution": SOLUTION, "language": "python", "cases": cases}


def _function(problem: str, cases: list[Fields]) -> Fields:
    return {"problem": f"{problem}\n\n{_FUNCTION}", "solution": SOLUTION, "cases": cases}


def _tested(problem: str, tests: str, framework: str) -> Fields:
    files = {"test_solution.py": tests}
    made = {"files": files, "framework": framework}
    return {"problem": f"{problem}\n\n{_FUNCTION}", "solution": SOLUTION, "tests": made}


def _call(function: str, arguments: list[Any], value: Any) -> Fields:
    return {"call": f"{function}({', '.join(map(repr, arguments))})", "expect": repr(value)}


def _text(value: Any) -> str:
    """Return an input or output that may be a list of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise RowRefused(f"a value of its tests is not JSON: {text[:80]}") from None


def _tests_in(row: DatasetRow, name: str) -> list[Any]:
    """Return tests that are JSON, or as LiveCodeBench packs them: base64 of zlib of a pickled text of JSON."""
    text = row.text_or_empty(name)
    if not text.strip():
        return []
    try:
        return list(json.loads(text))
    except ValueError:
        pass
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_UNPACKED)
        if not unpacking.eof:
            raise RowRefused(f"its field `{name}` has more than {_MOST_UNPACKED >> 20} MiB")
        return list(json.loads(_pickled_text(data)))
    except (binascii.Error, zlib.error, ValueError, TypeError):
        raise RowRefused(f"its field `{name}` is neither JSON nor packed as in LiveCodeBench") from None


def _pickled_text(data: bytes) -> str:
    """Return the one text of a pickle, without loading it: a pickle may name functions to call, and sizes and indexes that fill
    the memory. Raises ValueError for a pickle of anything else."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name.endswith("UNICODE") or opcode.name == "BINUNICODE8":
            texts.append(str(argument))
        elif opcode.name not in _OF_A_TEXT:
            raise ValueError(opcode.name)
    if len(texts) != 1:
        raise ValueError("it is not one text")
    return texts[0]


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise RowRefused("its tests are not valid Python") from None


def _asserted(body: list[ast.stmt], names: dict[str, str]) -> list[Fields]:
    """Return the asserts as cases. `names`: name in the tests -> name in the solution."""
    cases = []
    for node in body:
        if isinstance(node, ast.Expr | ast.Pass | ast.Import | ast.ImportFrom):
            continue
        if not isinstance(node, ast.Assert):
            raise RowRefused("its tests are more than asserts, so a solution could change them")
        if isinstance(node.test, ast.Constant):
            continue
        for name in ast.walk(node.test):
            if isinstance(name, ast.Name):
                name.id = names.get(name.id, name.id)
        call = ast.unparse(node.test)
        if split(call).outside is None:
            raise RowRefused(f"it compares in the solution's process, which a solution can forge: {call[:80]}")
        cases.append({"call": call, "expect": "True"})
    return cases
