"""The `code` task in a real sandbox: whatever a solution does, its score is what its calls really come to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import Task
from rollyard.node.agents.scoring.case_driver import encode
from rollyard.node.agents.scoring.case_results import count_passed
from rollyard.node.agents.tasks.base import Score
from rollyard.node.agents.tasks.code import CodeHandler
from rollyard.node.sandbox.sandbox import Sandbox

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
    return await HANDLER.evaluate(of or task(), {"solution": solution}, sandbox, [], SECONDS)


async def test_a_right_solution_gets_its_reward(sandbox: Sandbox) -> None:
    found = await score(sandbox, "print('hello')\ndef f(n):\n    print('working')\n    return n * n\n")
    assert found == Score(1.0, {"passed": 2.0, "cases": 2.0})


async def test_only_all_cases_give_the_reward(sandbox: Sandbox) -> None:
    assert await score(sandbox, "def f(n):\n    return 4\n") == Score(0.0, {"passed": 1.0, "cases": 2.0})


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
    assert await score(sandbox, solution) == Score(0.0, {"passed": 1.0, "cases": 2.0})


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
    found = await HANDLER.evaluate(of, {}, sandbox, [], SECONDS)
    assert found == Score(0.0, {"passed": 0.0, "cases": 2.0, "missing_file": 1.0})
    await sandbox.bash("mkdir /workspace/s.py", 10)
    assert await HANDLER.collect(of, sandbox) == {}, "a folder is no solution"


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
    assert await score(sandbox, solution.decode(), of) == Score(0.0, broken)


async def test_files_are_there_before_the_agent_and_the_solution_is_taken_after(sandbox: Sandbox) -> None:
    of = task(files={"/workspace/data/in.txt": "grüße"})
    await HANDLER.init(of, sandbox)
    assert (await sandbox.bash("cat data/in.txt", 10)).output == "grüße"
    await sandbox.write_file("/workspace/s.py", b"def f(n): return n * n\n")
    assert await HANDLER.collect(of, sandbox) == {"solution": "def f(n): return n * n\n"}
    await sandbox.write_file("/workspace/s.py", b"\xff\xfe")
    assert await HANDLER.collect(of, sandbox) == {}, "no text"


def line(value: object) -> bytes:
    return json.dumps(encode(value)).encode()


@pytest.mark.parametrize(
    ("expect", "found", "equal"),
    [
        ("0.3", line(0.1 + 0.2), True),
        ("0.3", line(0.31), False),
        ("1", line(1.0), True),
        ("1", line(True), False),
        ("True", line(1), False),
        ("True", line(1.0), False),
        ("1.0", line(True), False),
        ("True", line(True), True),
        ("[1, 2]", line((1, 2)), False),
        ("[0.3, (1,)]", line([0.1 + 0.2, (1,)]), True),
        ("{'a': 0.3}", line({"a": 0.1 + 0.2}), True),
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
        ("1.5", line(float("nan")), False),
        ("1.5", b"", False),
        ("1.5", b"1.5 1.5", False),
        ("1.5", b"__import__('os')", False),
        ("1.5", b"[" * 100_000, False),
        ("1.5", b"1" * 10_000, False),
        ("1.5", b"\xff", False),
        ("{1: 2}", b'{"dict": [[[], 2]]}', False),
        ("{1: 2}", b'{"dict": 5}', False),
        ("{1: 2}", b'{"dict": [1]}', False),
        ("{1}", b'{"set": [1, 1]}', False),
    ],
)
def test_values_are_compared_with_their_types(expect: str, found: bytes, equal: bool) -> None:
    assert count_passed(json.dumps([expect]).encode(), found + b"\n") == {"passed": float(equal)}


@pytest.mark.parametrize("lines", [b"", b"1", b"1\n", b"1\n1\n1\n", b"1\n" + b"1" * (1 << 19) + b"\n"])
def test_results_that_the_driver_has_not_written_are_none(lines: bytes) -> None:
    assert count_passed(b'["1", "1"]', lines) == {"passed": 0.0, "bad_results": 1.0}


def test_a_wrong_task_names_its_field() -> None:
    with pytest.raises(Invalid, match=r"task.cases.0.expect: .*write a Python literal"):
        HANDLER.prompt(task([{"call": "f(2)", "expect": "len('a')"}]))
