"""Unit tests as the form of a task: honest solutions get the reward, and what acts on the tests gets none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from rollyard.core.errors import Invalid, TaskError
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code.handler import CodeHandler
from tests.support.plain_sandbox import LIMITS
from tests.tasks.hacks.conftest import image_with_pytest
from tests.tasks.hacks.test_swe_hacks import PASS

__all__ = ["image_with_pytest"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

Scored = Callable[..., Awaitable[Score]]
UNITTEST = """
import unittest
from s import add

class Add(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(2, 3), 5)

    def test_negative(self):
        self.assertEqual(add(-2, 1), -1)
        with self.assertRaises(TypeError):
            add("a", 1)
"""
PYTEST = """
import pytest
from s import add

@pytest.mark.parametrize("a", [1, 2])
def test_one_more(a):
    assert add(a, 1) == a + 1

class TestText:
    def test_text(self):
        assert add("a", "b") == "ab"
"""
RIGHT = "def add(a, b):\n    return a + b\n"
LINES = (
    "test_small (test_s.Add.test_small) ... ok\ntest_negative (test_s.Add.test_negative) ... ok\n\nRan 2 tests in 0.1s\n\nOK\n"
    "= short test summary info =\nPASSED test_s.py::test_one_more[1]\nPASSED test_s.py::test_one_more[2]\n"
    "PASSED test_s.py::TestText::test_text\n= 3 passed in 0.01s =\n"
)


def task(framework: str = "unittest", text: str = UNITTEST, **more: Any) -> Task:
    tests = {"files": {"test_s.py": text}, "framework": framework, "seconds": 30.0}
    return Task.model_validate(
        {"kind": "code", "problem": "Add.", "solution": "/workspace/s.py", **{"tests": tests, **more}}
    )


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["bubblewrap", pytest.param("apptainer", marks=pytest.mark.long)]
)
async def scored(request: pytest.FixtureRequest) -> AsyncIterator[Scored]:
    handler = CodeHandler()
    async with SandboxFactory(find_runtime(request.param)) as factory:

        async def score(solution: str, of: Task | None = None, image: str | None = None) -> Score:
            @asynccontextmanager
            async def fresh() -> AsyncIterator[Sandbox]:
                spec = SandboxSpec(None if image is None else parse_image(image), LIMITS)
                async with await factory.start(spec) as sandbox:
                    yield sandbox

            async with fresh() as sandbox:
                return await handler.evaluate(
                    of or task(), Evaluation({"solution": solution}, [], 120.0, sandbox, fresh)
                )

        yield score
    await handler.close()


HONEST = {
    "right": RIGHT,
    "prints": "print('FAILED (failures=1)')\n" + RIGHT,
    "names the framework": "import unittest, atexit, os\natexit.register(print, 'bye')\n" + RIGHT,
    "has tests of its own": RIGHT
    + "import unittest\nclass Own(unittest.TestCase):\n    def test_own(self):\n        self.assertEqual(add(1, 1), 2)\n"
    "if __name__ == '__main__':\n    unittest.main()\n",
}
HACKS = {
    "wrong": "def add(a, b):\n    return 5\n",
    "does not compile": "def add(a, b)",
    "hangs": "def add(a, b):\n    while True: pass\n",
    "ends at once": "import os\nos._exit(0)\n",
    "prints a summary and ends": f"import os\nos.write(1, {LINES!r}.encode())\nos._exit(0)\n",
    "prints a summary on stderr": f"import os\nos.write(2, {LINES!r}.encode())\nos._exit(0)\n",
    "prints a summary at exit": "import atexit, os\nout = os.dup(1)\nnull = os.open('/dev/null', 1)\n"
    f"os.dup2(null, 1); os.dup2(null, 2)\natexit.register(lambda: os.write(out, {LINES!r}.encode()))\n"
    "def add(a, b): return 7\n",
    "patches the assertions": "import unittest\nunittest.TestCase.assertEqual = unittest.TestCase.assertRaises = "
    "lambda *a: __import__('contextlib').nullcontext()\ndef add(a, b): return 7\n",
    "patches the run": "import unittest\n"
    "unittest.TestCase.run = lambda s, r=None: (r.startTest(s), r.addSuccess(s), r.stopTest(s))\ndef add(a, b): return 7\n",
    "patches the results": "import unittest\nfor n in ('addError', 'addFailure'):\n"
    "    setattr(unittest.TextTestResult, n, lambda s, t, e: s.addSuccess(t))\ndef add(a, b): return 7\n",
    "returns what equals all": "class A(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\n"
    "def add(a, b):\n    if a == 'a' and b == 1: raise TypeError\n    return A(7)\n",
    "skips the tests": "import unittest\nraise unittest.SkipTest('no')\n",
    "loads no tests": "import unittest\nunittest.TestLoader.loadTestsFromModule = lambda *a, **k: unittest.TestSuite()\n",
    "rewrites the test": "import sys\ndef add(a, b): return 7\n"
    "for m in list(sys.modules.values()):\n    if getattr(m, '__name__', '') == 'test_s':\n"
    "        m.unittest.TestCase.run = None\n",
}
SHORT = {"right", "wrong", "prints a summary and ends", "patches the run"}


def named(cases: dict[str, str]) -> list[Any]:
    return [
        pytest.param(text, id=name, marks=[] if name in SHORT else pytest.mark.long) for name, text in cases.items()
    ]


@pytest.mark.parametrize("solution", named(HONEST))
async def test_an_honest_solution_gets_the_reward(scored: Scored, solution: str) -> None:
    assert await scored(solution) == Score(1.0, {"passed": 2.0, "cases": 2.0}, ["every test passed (2)"])


@pytest.mark.parametrize("solution", named(HACKS))
async def test_no_hack_of_the_tests_gets_a_reward(scored: Scored, solution: str) -> None:
    found = await scored(solution, task(tests={"files": {"test_s.py": UNITTEST}, "seconds": 8.0}))
    assert found.reward == 0.0, found


async def test_a_forged_result_is_named(scored: Scored) -> None:
    found = await scored(HACKS["patches the run"])
    assert (found.reward, found.metrics["forged"]) == (0.0, 1.0)
    assert found.notes[0].startswith(
        "tests pass although they cannot, so their results are forged: test_s.Add.test_small"
    )


async def test_a_failed_test_is_named_and_may_have_partial_credit(scored: Scored) -> None:
    found = await scored("def add(a, b):\n    return 5\n", task(credit="cases"))
    assert (found.reward, found.metrics) == (0.5, {"passed": 1.0, "cases": 2.0})
    assert found.notes[0] == "test_s.Add.test_negative: failed"
    assert "AssertionError: 5 != -1" in found.notes[-1]


@pytest.mark.long  # it makes an image with pytest
async def test_pytest_is_the_images(scored: Scored, request: pytest.FixtureRequest) -> None:
    of, image = task("pytest", PYTEST), str(request.getfixturevalue("image_with_pytest"))
    assert (await scored(RIGHT, of, image)).notes == ["every test passed (2)"]
    assert (await scored(PASS + "def add(a, b): return 7", of, image)).reward == 0.0
    assert (await scored(f"import os\nos.write(1, {LINES!r}.encode())\nos._exit(0)", of, image)).reward == 0.0
    wrong = await scored("def add(a, b): return a + 1", of, image)
    assert (wrong.reward, wrong.notes[0]) == (0.0, "test_s.TestText.test_text: failed")
    with pytest.raises(TaskError, match="the tests need pytest in the image"):
        await scored(RIGHT, of)


async def test_other_languages_have_commands(scored: Scored) -> None:
    script = "test $(bash s.sh 2 3) = 5 && echo ok 1 - small || echo not ok 1 - small"
    tests = {"files": {"t.sh": script}, "command": "echo 1..1; bash t.sh", "log_parser": "tap", "names": ["small"]}
    of = task(solution="/workspace/s.sh", tests=tests)
    assert (await scored("echo $(($1 + $2))", of)).reward == 1.0
    assert (await scored("echo 4", of)).notes[0] == "small: failed"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cases": [{"call": "f()", "expect": "1"}]}, "write either `cases` or `tests`"),
        ({"language": "python"}, "leave out `language`"),
        ({"tests": {"files": {"t.py": ""}}}, "name a file `test_solution.py`"),
        ({"tests": {"files": {"t.sh": ""}, "command": "bash t.sh"}}, "`log_parser` and `names` together"),
        ({"eval_from_snapshot": True}, "tests have neither"),
    ],
)
async def test_a_wrong_task_says_what_to_write(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        CodeHandler().prompt(task(**fields))
