"""Rows of programming sets, in the forms in which they are published, become tasks or are refused by a reason."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from rollyard.tasks.code.rows.conversion import convert_problem
from rollyard.tasks.rows.dataset_row import Converted, Unconverted


def packed(value: Any) -> str:
    return packed_bytes(pickle.dumps(value))


def packed_bytes(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


PRIVATE = [{"input": "3\n", "output": "9\n", "testtype": "stdin"}]
BENCH = {
    "question_content": "Square.",
    "question_id": "abc_1",
    "difficulty": "easy",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "private_test_cases": packed(json.dumps(PRIVATE)),
    "metadata": "{}",
}
CALLED = BENCH | {
    "starter_code": "class Solution:\n    def add(self, a, b):",
    "public_test_cases": json.dumps([{"input": "[1, 2]\ntrue", "output": "null"}]),
    "private_test_cases": json.dumps([]),
    "metadata": json.dumps({"func_name": "add"}),
}
CONTESTS = {
    "name": "1_A",
    "description": "Square.",
    "public_tests": {"input": ["2\n"], "output": ["4\n"]},
    "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["3\n"], "output": ["9\n"]},
    "solutions": {"language": [2, 3], "solution": ["int main() {}", "print(int(input()) ** 2)"]},
    "time_limit": {"seconds": 1, "nanos": 500_000_000},
    "memory_limit_bytes": 256_000_000,
}
FORCES = {
    "description": "Square.",
    "input_format": "n",
    "output_format": "n squared",
    "official_tests": [{"input": "2", "output": "4"}],
    "time_limit": 2.0,
    "memory_limit": 256.0,
}
TACO = {
    "question": "Square.",
    "input_output": json.dumps({"inputs": ["2\n", ["3", "x"]], "outputs": ["4\n", ["9"]]}),
    "solutions": json.dumps(["print(int(input()) ** 2)"]),
}
FUNCTION = TACO | {"input_output": json.dumps({"fn_name": "f", "inputs": [[2], [3]], "outputs": [[4], [9]]})}
EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def add(a, b):\n",
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "METADATA = {}\ndef check(candidate):\n    'all'\n    assert candidate(2, 3) == 5, 'no'\n    assert True\n"
    "    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6\n",
}
UNITTEST = (
    "import unittest\nclass TestCases(unittest.TestCase):\n    def test_pi(self):\n"
    "        self.assertEqual(task_func(1), math.floor(3.5))\n"
)
BIG = {
    "task_id": "BigCodeBench/0",
    "instruct_prompt": "Write task_func.",
    "code_prompt": "import math\ndef task_func(n):\n",
    "canonical_solution": "    return math.floor(math.pi) * n\n",
    "test": UNITTEST,
    "entry_point": "task_func",
}
KOD = {
    "question": "Add.",
    "solution": "def add(a, b): return a + b",
    "test": "from solution import add\ndef test_add():\n    assert add(1, 2) == 3\n",
}
MBPP = {"task_id": 2, "text": "Add.", "code": "def add(a, b): return a + b", "test_list": ["assert add(1, 2) == 3"]}


def made(row: Any, family: str | None = None) -> dict[str, Any]:
    found = convert_problem(row, family)
    assert isinstance(found, Converted), found
    return found.task


@pytest.mark.parametrize(
    ("row", "family", "cases"),
    [
        (BENCH, "livecodebench", [{"input": "2\n", "output": "4\n"}, {"input": "3\n", "output": "9\n"}]),
        (CALLED, "livecodebench", [{"call": "Solution().add([1, 2], True)", "expect": "None"}]),
        (CONTESTS, "code-contests", [{"input": "2\n", "output": "4\n"}, {"input": "3\n", "output": "9\n"}]),
        (FORCES, "codeforces", [{"input": "2", "output": "4"}]),
        (TACO, "taco", [{"input": "2\n", "output": "4\n"}, {"input": "3\nx", "output": "9"}]),
        (FUNCTION, "taco", [{"call": "f(2)", "expect": "4"}, {"call": "f(3)", "expect": "9"}]),
        (
            EVAL,
            "humaneval",
            [
                {"call": "add(2, 3) == 5", "expect": "True"},
                {"call": "abs(add(0.1, 0.2) - 0.3) < 1e-06", "expect": "True"},
            ],
        ),
        (MBPP, "mbpp", [{"call": "add(1, 2) == 3", "expect": "True"}]),
    ],
)
def test_rows_become_tasks_with_their_cases(row: dict[str, Any], family: str, cases: list[dict[str, str]]) -> None:
    task = made(row)
    assert (task["kind"], task["cases"], task["metadata"]["family"]) == ("code", cases, family)
    assert made(row, family) == task


def test_packed_tests_are_read_in_every_protocol_of_pickles() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        row = BENCH | {"private_test_cases": packed_bytes(pickle.dumps(json.dumps(PRIVATE), protocol))}
        assert made(row) == made(BENCH)


def test_limits_and_references_come_with_the_row() -> None:
    task = made(CONTESTS)
    assert (task["case_seconds"], task["case_memory"], task["reference"]) == (
        1.5,
        "256000000",
        "print(int(input()) ** 2)",
    )
    assert (made(FORCES)["case_seconds"], made(FORCES)["case_memory"]) == (2.0, "256M")
    assert made(TACO)["reference"] == "print(int(input()) ** 2)"
    assert made(EVAL)["reference"] == "def add(a, b):\n    return a + b\n"


def test_rows_with_unit_tests_keep_them_and_their_framework() -> None:
    big, kod = made(BIG), made(KOD)
    assert big["tests"] == {
        "framework": "unittest",
        "files": {"test_solution.py": f"from solution import *\n{UNITTEST}"},
    }
    assert big["reference"] == "import math\ndef task_func(n):\n    return math.floor(math.pi) * n\n"
    assert kod["tests"] == {"framework": "pytest", "files": {"test_solution.py": KOD["test"]}}
    assert [task["metadata"]["family"] for task in (big, kod)] == ["bigcodebench", "kodcode"]


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/rollyard-bomb",)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (7, "it is not an object"),
        ({"x": 1}, "no family has rows with the fields x"),
        (BENCH | {"private_test_cases": "???"}, "is neither JSON nor packed"),
        (BENCH | {"private_test_cases": packed(Bomb())}, "is neither JSON nor packed"),
        (BENCH | {"private_test_cases": packed("9" * (70 << 20))}, "has more than 64 MiB"),
        (BENCH | {"private_test_cases": packed_bytes(b"\x96" + (1 << 40).to_bytes(8, "little") + b".")}, "neither JSON nor"),
        (BENCH | {"private_test_cases": packed_bytes(b"]r\xff\xff\xff\x7f.")}, "neither JSON nor"),
        (BENCH | {"private_test_cases": "[" * 50_000}, "form of its family: RecursionError"),
        (FORCES | {"memory_limit": float("inf")}, "form of its family: OverflowError"),
        (FORCES | {"description": "\ud800"}, "it makes no valid task"),
        (TACO | {"input_output": "[" * 50_000}, "is neither JSON nor a list of Python"),
        (BENCH | {"public_test_cases": "[1]"}, "do not have the form of its family"),
        (CALLED | {"public_test_cases": json.dumps([{"input": "x", "output": "1"}])}, "is not JSON: x"),
        (FORCES | {"interaction_format": "ask"}, "it is interactive"),
        (FORCES | {"generated_checker": "x"}, "it has many right outputs"),
        (FORCES | {"official_tests": [{"input": "1" * 600_000, "output": "1"}]}, "its cases are too long"),
        (CONTESTS | {"public_tests": {"input": [], "output": []}, "generated_tests": None}, "write either `cases` or `tests`"),
        (EVAL | {"test": "def check(candidate):\n    for n in range(9):\n        assert candidate(n, 0)"}, "more than asserts"),
        (EVAL | {"test": "def check(candidate):\n    assert all(candidate(n, 0) == n for n in range(9))"}, "can forge"),
        (EVAL | {"test": "x ="}, "not valid Python"),
        (BIG | {"test": UNITTEST + "# patch('__main__.x')"}, "change names of the module __main__"),
        (MBPP | {"test_setup_code": "x = 1"}, "need code of their own"),
    ],
)  # fmt: skip
def test_what_does_not_convert_is_refused_by_a_reason(row: Any, why: str) -> None:
    found = convert_problem(row)
    assert isinstance(found, Unconverted)
    assert why in found.reason
    assert not os.path.exists("/tmp/rollyard-bomb")
