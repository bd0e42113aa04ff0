"""The `code` task in a real sandbox: whatever a solution does, its score is what its calls really come to."""

from __future__ import annotations

import json
from array import array
from collections import Counter, deque
from collections.abc import AsyncIterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rollyard.core.errors import Invalid, SandboxStartFailed
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code.handler import CodeHandler
from rollyard.tasks.scoring.case_comparison import split
from rollyard.tasks.scoring.case_driver import encode
from rollyard.tasks.scoring.case_results import failed_cases

HANDLER = CodeHandler()
SECONDS = 60.0


@pytest.fixture(autouse=True)
async def fresh_checkers() -> AsyncIterator[None]:
    """Children belong to the loop of one test."""
    HANDLER._checkers = CodeHandler()._checkers
    yield
    await HANDLER.close()


SQUARES = [{"call": f"f({n})", "expect": str(n * n)} for n in (2, 3)]


def task(cases: list[dict[str, str]] = SQUARES, **more: Any) -> Task:
    fields = {"problem": "Square.", "solution": "/workspace/s.py", "cases": cases, "case_seconds": 20.0}
    return Task.model_validate({"kind": "code", **fields, **more})


async def score(sandbox: Sandbox, solution: str, of: Task | None = None) -> Score:
    return await HANDLER.evaluate(of or task(), Evaluation({"solution": solution}, [], SECONDS, sandbox))


async def test_a_right_solution_gets_its_reward(sandbox: Sandbox) -> None:
    found = await score(sandbox, "print('hello')\ndef f(n):\n    print('working')\n    return n * n\n")
    assert found == Score(1.0, {"passed": 2.0, "cases": 2.0}, ["every case passed (2)"])


async def test_only_all_cases_give_the_reward(sandbox: Sandbox) -> None:
    found = await score(sandbox, "def f(n):\n    return 4\n")
    assert found == Score(0.0, {"passed": 1.0, "cases": 2.0}, ["case 2 of 2, f(3): got 4, expected 9"])


def poison(data: str) -> str:
    """A solution that writes results itself and ends the driver."""
    write = f"open('/tmp/check/results.json', 'wb').write({data})"
    return f"import os, signal\n{write}\nos.kill(os.getppid(), signal.SIGKILL)\n"


HOSTILE = {
    "leaves at once": "import os\nos._exit(0)\n",
    "leaves in the call": "import sys\ndef f(n):\n    sys.exit(0)\n",
    "does not compile": "def f(n:\n",
    "raises": "def f(n):\n    raise SystemError\n",
    "hangs": "def f(n):\n    while True:\n        pass\n",
    "sleeps deaf": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n",
    "eats memory": "def f(n):\n    return len(bytearray(8 << 30))\n",
    "kills its parent": "import os, signal\ndef f(n):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return n * n\n",
    "writes the results": (
        "import json, os, signal\n"
        "open('/tmp/check/results.json', 'w').write(json.dumps(['1', '1']))\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n"
    ),
    "writes no results": (
        "import os, signal\nopen('/tmp/check/results.json', 'w').write('{\"a\": [')\nos.kill(os.getppid(), signal.SIGKILL)\n"
    ),
    "writes a list of lists": poison("b'[' + b'[],' * 5_000_000 + b'[]]'"),
    "writes colliding integers": poison(
        "('{' + ','.join(str(k * (2**61 - 1)) for k in range(500_000)) + '}').encode()"
    ),
    "writes a long number": poison("b'9' * 200_000 + b'\\n0\\n'"),
    "writes nested lists": poison("b'[' * 200_000 + b'\\n0\\n'"),
    "makes the results a folder": "import os\nos.makedirs('/tmp/check/results.json')\n",
    "answers with an equal": "class A:\n    def __eq__(self, o):\n        return True\ndef f(n):\n    return A()\n",
    "answers with a lying text": "class A:\n    def __repr__(self):\n        return '4 or 9'\ndef f(n):\n    return A()\n",
    "answers in thousands": "def f(n):\n    return '9' * 10_000_000\n",
    "answers too large for a float": "def f(n):\n    return 10 ** 400\n",
    "answers nested": "class A:\n    def __repr__(self):\n        return '(' * 50000\ndef f(n):\n    return A()\n",
}


@pytest.mark.parametrize("solution", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_solution_gets_nothing(sandbox: Sandbox, solution: str) -> None:
    cases = [{"call": "f(2)", "expect": "4.0"}, {"call": "f(3)", "expect": "9.0"}]
    found = await score(sandbox, solution, task(cases, case_seconds=1.0))
    assert (found.reward, found.metrics["passed"]) == (0.0, 0.0)
    assert (await sandbox.bash("echo alive", 10)).output.strip() == "alive", "the sandbox outlives it"


async def test_one_bad_case_does_not_spoil_the_others(sandbox: Sandbox) -> None:
    solution = "import os\ndef f(n):\n    if n == 2:\n        os._exit(1)\n    return n * n\n"
    why = "case 1 of 2, f(2): its process ended with exit code 1 before it had a value"
    assert await score(sandbox, solution) == Score(0.0, {"passed": 1.0, "cases": 2.0}, [why])


async def test_cases_do_not_see_each_other(sandbox: Sandbox) -> None:
    solution = "seen = []\ndef f(n):\n    seen.append(n)\n    return len(seen)\n"
    cases = [{"call": "f(1)", "expect": "1"}, {"call": "f(2)", "expect": "1"}]
    assert (await score(sandbox, solution, task(cases))).reward == 1.0


async def test_what_is_left_running_neither_stops_nor_changes_the_score(sandbox: Sandbox) -> None:
    daemon = "    if not os.fork():\n        os.setsid()\n        time.sleep(999)\n"
    solution = f"import os, time\ndef f(n):\n{daemon}    return n * n\n"
    assert (await score(sandbox, solution)).reward == 1.0


async def test_the_expected_values_are_nowhere_in_the_sandbox(sandbox: Sandbox) -> None:
    secret = "'tell-nobody-7261'"
    solution = "def f():\n    return open('/tmp/check/job.json').read() + open('/tmp/check/driver.py').read()\n"
    found = await score(sandbox, solution, task([{"call": "f()", "expect": secret}]))
    assert found.reward == 0.0
    grep = await sandbox.bash("grep -rl tell-nobody-7261 /tmp /workspace /home 2>/dev/null; echo done", 30)
    assert grep.output.strip() == "done"


async def test_a_missing_file_scores_nothing_and_says_so(sandbox: Sandbox) -> None:
    of = task()
    assert await HANDLER.collect(of, sandbox) == {}
    found = await HANDLER.evaluate(of, Evaluation({}, [], SECONDS, sandbox))
    why = "there is no solution: /workspace/s.py is missing, too large, or not text in UTF-8"
    assert found == Score(0.0, {"passed": 0.0, "cases": 2.0, "missing_file": 1.0}, [why])
    await sandbox.bash("mkdir /workspace/s.py", 10)
    assert await HANDLER.collect(of, sandbox) == {}, "a folder is not a solution"


async def test_what_the_agent_has_broken_is_its_mistake(sandbox: Sandbox) -> None:
    """With a snapshot EVAL has all of the agent's changes, also those that are in its way."""
    of, solution = task(eval_from_snapshot=True), b"import helper\ndef f(n): return helper.f(n)\n"
    await HANDLER.init(of, sandbox)
    await sandbox.write_file("/workspace/s.py", solution, 0o400)
    await sandbox.write_file("/workspace/helper.py", b"def f(n): return n * n\n")
    await sandbox.bash("ln -s /nowhere /tmp/check", 10)
    assert (await score(sandbox, solution.decode(), of)).reward == 1.0
    await sandbox.bash("cat /dev/zero > /tmp/full", 10)
    broken = {"passed": 0.0, "cases": 2.0, "broken_sandbox": 1.0}
    found = await score(sandbox, solution.decode(), of)
    assert (found.reward, found.metrics) == (0.0, broken)
    assert "cannot run with the agent's files" in found.notes[0]


async def test_a_python_that_something_ends_is_no_fault_of_the_task(sandbox: Sandbox) -> None:
    await sandbox.bash("mkdir -p /tmp/bin; printf '#!/bin/sh\\nkill -9 $$\\n' > /tmp/bin/python3", 10)
    await sandbox.bash("chmod 755 /tmp/bin/python3; PATH=/tmp/bin:$PATH", 10)
    try:
        with pytest.raises(SandboxStartFailed, match="python3 did not run: "):
            await score(sandbox, "def square(n):\n    return n * n\n")
    finally:
        await sandbox.bash("PATH=${PATH#/tmp/bin:}; rm -r /tmp/bin", 10)


async def test_files_are_there_before_the_agent_and_the_solution_is_taken_after(sandbox: Sandbox) -> None:
    of = task(files={"/workspace/data/in.txt": "grüße"})
    await HANDLER.init(of, sandbox)
    assert (await sandbox.bash("cat data/in.txt", 10)).output == "grüße"
    await sandbox.write_file("/workspace/s.py", b"def f(n): return n * n\n")
    assert await HANDLER.collect(of, sandbox) == {"solution": "def f(n): return n * n\n"}
    await sandbox.write_file("/workspace/s.py", b"\xff\xfe")
    assert await HANDLER.collect(of, sandbox) == {}, "no text"


WHY = {
    "def f(n:\n    return n\n": "the file raises SyntaxError: invalid syntax (line 1)",
    "x = 1\n\ndef f(n):\n    return {}[n]\n": "raises KeyError: 2 (line 4)",
    "import sys\ndef f(n):\n    sys.exit(3)\n": "raises SystemExit: 3 (line 3)",
    "def g(n):\n    return n\n": "raises NameError: name 'f' is not defined",
    "def f(n):\n    while True:\n        pass\n": "no value after 1 s",
    "def f(n):\n    return n + 1\n": "got 3, expected 4",
    "def f(n):\n    return object\n": "got <class 'object'>, expected 4",
    "def f(n):\n    return '9' * 10_000_000\n": "the value has more than 262144 bytes",
    "class A(Exception):\n    def __str__(self):\n        raise A\ndef f(n):\n    raise A\n": "raises A (line 5)",
}


async def test_a_failed_case_says_whether_it_was_the_syntax_an_exception_the_time_or_the_value(
    sandbox: Sandbox,
) -> None:
    """A syntax error, an exception and a wrong value looked the same."""
    one = task([{"call": "f(2)", "expect": "4"}], case_seconds=1.0)
    for solution, why in WHY.items():
        found = await score(sandbox, solution, one)
        assert found.reward == 0.0
        note = found.notes[0].replace(": '(' was never closed", ": invalid syntax")
        assert note == f"case 1 of 1, f(2): {why}", solution


FORGED = {
    "f(3) == 9": "class A:\n    def __eq__(self, o):\n        return True\ndef f(n):\n    return A()\n",
    "f(3) != 8": "class A:\n    def __ne__(self, o):\n        return True\ndef f(n):\n    return A()\n",
    "9 == f(3)": "class A(int):\n    def __eq__(self, o):\n        return True\ndef f(n):\n    return A(1)\n",
    "abs(f(3) - 9) < 1e-6": "def abs(x):\n    return 0\ndef f(n):\n    return 1\n",
    "abs(9.0 - f(3)) / 9.0 <= 1e-6": "def abs(x):\n    return 0.0\ndef f(n):\n    return 1\n",
    "f(3) is not None and 8 < f(3) < 10": (
        "class A:\n    def __lt__(self, o):\n        return True\n    __gt__ = __lt__\ndef f(n):\n    return A()\n"
    ),
    "f(3) in (9, 10)": "class A:\n    def __eq__(self, o):\n        return True\ndef f(n):\n    return A()\n",
    "not f(3) == 8": "class A:\n    def __eq__(self, o):\n        return False\ndef f(n):\n    return A()\n",
    "math.isclose(f(3), 9.0, rel_tol=1e-6)": (
        "import math\nmath.isclose = lambda *a, **k: True\ndef f(n):\n    return 1.0\n"
    ),
    "sorted([f(3), 1]) == sorted([9, 1])": "def sorted(x):\n    return x\ndef f(n):\n    return 1\n",
}
HONEST = "def f(n):\n    return n * n\n"


async def test_a_case_that_compares_cannot_be_forged(sandbox: Sandbox) -> None:
    for call, solution in FORGED.items():
        found = await score(sandbox, solution, task([{"call": call, "expect": "True"}]))
        assert found.reward == 0.0, call
    every, count = task([{"call": call, "expect": "True"} for call in FORGED]), len(FORGED)
    assert await score(sandbox, HONEST, every) == Score(
        1.0, {"passed": float(count), "cases": float(count)}, [f"every case passed ({count})"]
    )


async def test_long_values_that_are_compared_outside_fit_into_the_results(sandbox: Sandbox) -> None:
    of = task([{"call": "f() == [1] * 20000", "expect": "True"}] * 30)
    found = await score(sandbox, "def f():\n    return [1] * 20000\n", of)
    assert (found.reward, found.notes) == (1.0, ["every case passed (30)"])


@pytest.mark.parametrize(
    ("call", "inside"),
    [
        ("f(3)", ["f(3)"]),
        ("f(3) == 9", ["(f(3))"]),
        ("[1, 2] == f(3)[0]", ["(f(3)[0])"]),
        ("abs(f(2) - 1.41) < 1e-6", ["(f(2))"]),
        ("f(1) == 1 and f(2) == 4", ["(f(1))", "(f(2))"]),
        ("isinstance(f(1), int) and f(1) == 1", ["(isinstance(f(1), int))", "(f(1))"]),
        ("max(1, 2) == 2", ["(max(1, 2))"]),
        ("f(3) == g(3)", ["f(3) == g(3)"]),
        ("3 in Tree([3])", ["3 in Tree([3])"]),
        ("bool(Fraction(2, 2) == 1)", ["bool(Fraction(2, 2) == 1)"]),
        ("len(Stack([1])) == 1", ["(len(Stack([1])))"]),
        ("abs(v - w) < 1", ["(abs(v - w))"]),
        ("1 == 1", ["1 == 1"]),
        ("no python at all", ["no python at all"]),
    ],
)
def test_what_compares_with_a_constant_runs_outside_and_all_else_inside(call: str, inside: list[str]) -> None:
    assert split(call).expressions == inside


def test_a_number_of_another_value_is_wrong_however_near_it_is() -> None:
    for expect, found in [
        ("23416728348467685", 23416728348467685.0), ("6.626e-34", 0.0), ("1000000006", 1000000006.4),
        ("[1000000006]", [1000000006.0000001]), ("0.3", 0.1 + 0.2),
    ]:  # fmt: skip
        assert failed_cases(job(expect), line(found) + b"\n")["failed"] == [0], (expect, found)


@pytest.mark.parametrize(
    ("expect", "found", "tolerances", "equal"),
    [
        ("0.3", 0.1 + 0.2, {"relative": 1e-9}, True),
        ("[(0.3,)]", [(0.1 + 0.2,)], {"relative": 1e-9}, True),
        ("6.626e-34", 0.0, {"relative": 1e-9}, False),
        ("0.0", 1e-17, {"relative": 1e-9}, False),
        ("0.0", 1e-17, {"absolute": 1e-9}, True),
        ("1.0", 1.2, {"relative": 0.1, "absolute": 0.25}, True),
        ("1000000006", 1000000006.4, {"relative": 1e-6}, False),
        ("1.0", float("nan"), {"absolute": 5.0}, False),
        ("1e999", 5.0, {"relative": 0.5}, False),
        ("1e999", float("inf"), {"relative": 0.5}, True),
    ],
)
def test_a_tolerance_is_for_expected_floats_of_a_task_that_asks_for_it(
    expect: str, found: object, tolerances: dict[str, float], equal: bool
) -> None:
    assert failed_cases(job(expect, **tolerances), line(found) + b"\n")["failed"] == [0][equal:]


@pytest.mark.parametrize(
    ("expect", "found", "equal"),
    [
        ("1.5", np.float64(1.5), True),
        ("1.5", np.float32(1.5), True),
        ("3", np.int64(3), True),
        ("3", np.uint8(3), True),
        ("True", np.bool_(1), True),
        ("1", np.bool_(1), False),
        ("'a'", np.str_("a"), True),
        ("1+2j", np.complex64(1 + 2j), True),
        ("[[1, 2], [3, 4]]", np.array([[1, 2], [3, 4]]), True),
        ("[1.0]", np.array([1]), True),
        ("[1, 2]", np.array([1, 3]), False),
        ("(1, 2)", np.array([1, 2]), False),
        ("[1, 'a']", [np.int8(1), np.str_("a")], True),
        ("0.1", Decimal("0.1"), True),
        ("0.1", Decimal("0.10001"), False),
        ("10", Decimal("10.0"), True),
        ("10", Decimal("10.5"), False),
        ("1.5", Decimal("nan"), False),
        ("0.5", Fraction(1, 2), True),
        ("0.3333333333333333", Fraction(1, 3), True),
        ("0.333", Fraction(1, 3), False),
        ("2", Fraction(4, 2), True),
        ("True", Fraction(1), False),
        ("[0, 1, 2]", range(3), True),
        ("[0, 2]", range(3), False),
        ("[1, 2]", deque([1, 2]), True),
        ("[1, 2]", array("i", [1, 2]), True),
        ("{'a', 'b'}", {"a": 1, "b": 2}.keys(), True),
        ("{'a': 2}", Counter("aa"), True),
        ("b'a'", bytearray(b"a"), True),
        ("[1]", iter([1]), False),
        ("[1]", range(10**12), False),
    ],
)
def test_numbers_arrays_and_ranges_of_other_types_are_what_they_hold(expect: str, found: object, equal: bool) -> None:
    assert failed_cases(job(expect), line(found) + b"\n")["failed"] == [0][equal:]


def test_many_failed_cases_give_a_few_notes() -> None:
    cases = [["f()", "1"]] * 100
    asked = json.dumps({"cases": cases, "relative": 0.0, "absolute": 0.0}).encode()
    notes = failed_cases(asked, b"[2]\n" * 100)["notes"]
    assert len(notes) == 11
    assert notes[0] == "case 1 of 100, f(): got 2, expected 1"
    assert notes[-1] == "90 further cases did not pass either"


def line(value: object) -> bytes:
    return json.dumps([encode(value)]).encode()


def job(expect: str, call: str = "f()", **tolerances: float) -> bytes:
    return json.dumps({"cases": [[call, expect]], "relative": 0.0, "absolute": 0.0, **tolerances}).encode()


@pytest.mark.parametrize(
    ("expect", "found", "equal"),
    [
        ("0.3", line(0.3), True),
        ("0.3", line(0.31), False),
        ("1", line(1.0), True),
        ("1", line(True), False),
        ("True", line(1), False),
        ("True", line(1.0), False),
        ("1.0", line(True), False),
        ("True", line(True), True),
        ("[1, 2]", line((1, 2)), False),
        ("[0.3, (1,)]", line([0.3, (1,)]), True),
        ("{'a': 0.3}", line({"a": 0.3}), True),
        ("{'b': 1, 'a': 2}", line({"a": 2, "b": 1}), True),
        ("{'a': 1}", line({"a": 1, "b": 2}), False),
        ("{1: 2}", line({1.0: 2}), True),
        ("{1, 2}", line({2, 1}), True),
        ("{1, 2}", line({2, 3}), False),
        ("{1, 2}", line([1, 2]), False),
        ("{(1, 'é\U0001f600')}", line(frozenset({(1, "é\U0001f600")})), True),
        ("'1'", line(1), False),
        ("b'a'", line(b"a"), True),
        ("b'a'", line("a"), False),
        ("1+2j", line(1 + 2j), True),
        ("None", line(None), True),
        ("[]", line(None), False),
        ("['tuple']", line(("tuple",)), False),
        ("1.5", line(10**400), False),
        ("1.5", line(range(2)), False),
        ("1.5", b"1.5", False),
        ("1.5", b"[1.5, 1.5]", False),
        ("1.5", line(float("nan")), False),
        ("1.5", b"", False),
        ("1.5", b"1.5 1.5", False),
        ("1.5", b"__import__('os')", False),
        ("1.5", b"[" * 100_000, False),
        ("1.5", b"1" * 10_000, False),
        ("1.5", b"\xff", False),
        ("{1: 2}", b'[{"dict": [[[], 2]]}]', False),
        ("{1: 2}", b'[{"dict": 5}]', False),
        ("{1: 2}", b'[{"dict": [1]}]', False),
        ("{1}", b'[{"set": [1, 1]}]', False),
    ],
)
def test_values_are_compared_with_their_types(expect: str, found: bytes, equal: bool) -> None:
    counted = failed_cases(job(expect), found + b"\n")
    assert (counted["failed"], len(counted["notes"])) == ([0][equal:], int(not equal))


@pytest.mark.parametrize("lines", [b"", b"1", b"1\n", b"1\n1\n1\n", b"1\n" + b"1" * (1 << 19) + b"\n"])
def test_results_that_the_driver_has_not_written_are_none(lines: bytes) -> None:
    two = json.dumps({"cases": [["f()", "1"]] * 2, "relative": 0.0, "absolute": 0.0}).encode()
    counted = failed_cases(two, lines)
    assert (counted["failed"], counted["bad_results"]) == ([0, 1], 1.0)


def test_a_wrong_task_names_its_field() -> None:
    with pytest.raises(Invalid, match=r"task.cases.0.expect: .*write a Python literal"):
        HANDLER.prompt(task([{"call": "f(2)", "expect": "len('a')"}]))
