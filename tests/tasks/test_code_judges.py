"""Checkers and interactors of a task, in a sandbox without the agent's code."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from rollyard.core.errors import TaskError
from rollyard.kinds.task import Task
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code.handler import CodeHandler
from tests.support.plain_sandbox import LIMITS

pytestmark = pytest.mark.asyncio(loop_scope="module")

Scored = Callable[[str, Task], Awaitable[Score]]
CASES = [{"input": f"{n}\n", "output": "secret-answer"} for n in (6, 15)]
FACTORS = """
def check(input, output, answer):
    assert answer == 'secret-answer'
    a, b = map(int, output.split())
    return a > 1 and b > 1 and a * b == int(input)
"""
GUESS = """
import sys
secret, left = int(open(sys.argv[1]).read()), 8
assert open(sys.argv[3]).read() == 'secret-answer'
while left:
    line = sys.stdin.readline().split()
    if not line:
        print('it ended without an answer', file=sys.stderr)
        sys.exit(1)
    if line[0] == '!':
        sys.exit(0 if int(line[1]) == secret else 1)
    left -= 1
    print('<' if secret < int(line[1]) else '>=', flush=True)
print('too many questions', file=sys.stderr)
sys.exit(1)
"""
BISECTS = """
low, high = 0, 100
while high - low > 1:
    middle = (low + high) // 2
    print('?', middle, flush=True)
    low, high = (low, middle) if input() == '<' else (middle, high)
print('!', low)
"""


def task(**more: Any) -> Task:
    fields = {"problem": "?", "solution": "/workspace/s.py", "language": "python", "cases": CASES, "case_seconds": 3.0}
    return Task.model_validate({"kind": "code", **fields, **more})


def checker(source: str = FACTORS, **more: Any) -> Task:
    return task(checker={"language": "python", "source": source, **more})


def interactor(source: str = GUESS) -> Task:
    return task(interactor={"language": "python", "source": source})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scored() -> AsyncIterator[Scored]:
    handler = CodeHandler()
    async with SandboxFactory(find_runtime("bubblewrap")) as factory:
        spec = SandboxSpec(None, LIMITS)
        async with AsyncExitStack() as stack:
            sandbox, other = [await stack.enter_async_context(await factory.start(spec)) for _ in range(2)]

            free = [other]

            class Other:
                async def __aenter__(self) -> Any:
                    self._started = free.pop() if free else await stack.enter_async_context(await factory.start(spec))
                    return self._started

                async def __aexit__(self, *_: object) -> None:
                    free.append(self._started)

            async def score(solution: str, of: Task) -> Score:
                return await handler.evaluate(of, Evaluation({"solution": solution}, [], 60.0, sandbox, Other))

            yield score
    await handler.close()


@pytest.mark.parametrize(
    ("solution", "reward", "why"),
    [
        ("n = int(input())\nprint(n // 3, 3)", 1.0, "every case passed (2)"),
        ("n = int(input())\nprint(n, 1)", 0.0, "case 1 of 2: wrong answer"),
        ("print('x' * 99)", 0.0, "case 1 of 2: wrong answer: the judge cannot read it"),
        ("pass", 0.0, "case 1 of 2: wrong answer: the judge cannot read it"),
        ("import sys\nsys.exit(1)", 0.0, "case 1 of 2: it ended with exit code 1"),
        ("print(open('/workspace/judge/case/answer').read())", 0.0, "case 1 of 2: it ended with exit code 1"),
    ],
)
async def test_a_checker_decides_which_outputs_are_right(
    scored: Scored, solution: str, reward: float, why: str
) -> None:
    source = FACTORS.replace("a, b =", "if output == answer: return True\n    a, b =")
    found = await scored(solution, checker(source))
    assert (found.reward, found.notes[0][: len(why)]) == (reward, why)


async def test_a_checker_that_fails_at_any_output_is_the_tasks_fault(scored: Scored) -> None:
    no_verdict = r"the task's judge gives no verdict: it ended with exit code [35]: "
    for source in (FACTORS.replace("return", "return return"), "def check(input, output, answer): 1 / 0"):
        with pytest.raises(TaskError, match=no_verdict):
            await scored("n = int(input())\nprint(n // 3, 3)", checker(source))
    outputs = [{"input": "6\n", "output": "2 3"}]
    with pytest.raises(TaskError, match=no_verdict):
        await scored("print(3, 2)", task(cases=outputs, checker={"language": "python", "source": LATE}))


async def test_an_output_that_a_checker_cannot_read_is_wrong_without_an_answer_too(scored: Scored) -> None:
    """The rollout of a solution that printed nothing had no reward: the checker failed at the empty answer as well."""
    cases = [{"input": "15\n"}]
    of = task(cases=cases, checker={"language": "python", "source": FACTORS.replace("assert", "assert not answer or")})
    for solution, reward in (("pass", 0.0), ("print('x')", 0.0), ("print(3, 5)", 1.0)):
        assert (await scored(solution, of)).reward == reward
    with pytest.raises(TaskError, match="gives no verdict: it ended with exit code 5"):
        await scored(
            "print(3, 5)", task(cases=cases, checker={"language": "python", "source": "1 / 0\ndef check(a, b, c): 1"})
        )


UNSPOKEN = [{"input": "15\n"}]


@pytest.mark.parametrize(("cases", "garbage"), [(UNSPOKEN, "pass"), (UNSPOKEN, "print('x')"), (CASES, "print('x')")])
async def test_garbage_gets_0_from_a_checker_of_a_rare_form_that_nobody_can_ask(
    scored: Scored, cases: Any, garbage: str
) -> None:
    """A policy could end its rollout without a reward: neither the answers nor usual outputs were JSON objects."""
    source = "import json\ndef check(input, output, answer): return json.loads(output)['a'] == int(input)"
    found = await scored(garbage, task(cases=cases, checker={"language": "python", "source": source}))
    assert (found.reward, "the judge cannot read it: " in found.notes[0]) == (0.0, True)


async def test_a_checker_without_an_answer_to_be_asked_about_that_always_fails_is_the_tasks_fault(
    scored: Scored,
) -> None:
    """Honest work had the reward 0."""
    for source in ("def check(input, output, answer): return int(answer) == 1", "def check(i): return True"):
        with pytest.raises(TaskError, match="gives no verdict"):
            await scored("print(3, 5)", task(cases=UNSPOKEN, checker={"language": "python", "source": source}))


LATE = FACTORS.replace("return", "raise ValueError #").replace("assert", "#")
UNASKED = """
def check(input, output, answer):
    a, b = map(int, output.split())
    return a > 1 and b > 1 and a * b == int(input)
"""
GARBAGE = ("print('hello')", "import sys\nsys.stdout.buffer.write(b'\\xff\\x00')")


@pytest.mark.parametrize(
    "control",
    [
        {"cases": [{"input": "6\n", "output": "many"}, {"input": "15\n", "output": "3 5"}]},
        {"cases": CASES, "reference": "n = int(input())\nprint(n // 3, 3)"},
    ],
)
async def test_garbage_that_crashes_a_checker_is_wrong_if_any_honest_output_has_a_verdict(
    scored: Scored, control: dict[str, Any]
) -> None:
    """The rollout had no reward: the answer of the case was no output, and crashed the checker too."""
    of = task(checker={"language": "python", "source": UNASKED}, **control)
    for solution in GARBAGE:
        found = await scored(solution, of)
        assert (found.reward, "the judge cannot read it: " in found.notes[0]) == (0.0, True)


async def test_a_judge_without_a_verdict_says_what_to_add(scored: Scored) -> None:
    add = "give a checker's case an `output` that it can judge, or the task a `reference`"
    with pytest.raises(TaskError, match=add):
        await scored("print('x')", checker("def check(input, output, answer): 1 / 0"))
    raises = UNASKED.replace("return", "raise ValueError #")
    with pytest.raises(TaskError, match="gives no verdict"):
        await scored("print('x')", task(checker={"language": "python", "source": raises}, reference="print(3, 5)"))


async def test_a_checker_may_be_compiled_with_files_beside_it(scored: Scored) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    source = '#include <stdio.h>\n#include "own.h"\n'
    source += 'int main(int c, char **v) { return judge(fopen(v[1], "r"), fopen(v[2], "r")); }'
    own = (
        'static int judge(FILE *in, FILE *out) { int n, a, b; fscanf(in, "%d", &n);\n'
        'if (fscanf(out, "%d%d", &a, &b) != 2) { fprintf(stderr, "two numbers, please"); return 2; }\n'
        "return a * b != n; }\n"
    )
    in_c = task(checker={"language": "c", "source": source, "files": {"own.h": own}})
    assert (await scored("n = int(input())\nprint(n // 3, 3)", in_c)).reward == 1.0
    assert (await scored("print(1)", in_c)).notes == ["case 1 of 2: wrong answer: two numbers, please"]
    with pytest.raises(TaskError, match="the task's judge does not compile: "):
        await scored("print(1)", task(checker={"language": "c", "source": source.replace("own", "none")}))


@pytest.mark.parametrize(
    ("solution", "reward", "why"),
    [
        (BISECTS, 1.0, "every case passed (2)"),
        ("print('!', 6)", 0.0, "case 2 of 2: wrong answer"),
        (
            "for n in range(99):\n    print('?', n, flush=True)\n    input()",
            0.0,
            "case 1 of 2: wrong answer: too many questions",
        ),
        ("pass", 0.0, "case 1 of 2: wrong answer: it ended without an answer"),
        ("while True: pass", 0.0, "case 1 of 2: wrong answer: it ended without an answer"),
        ("print('what?', flush=True)", 0.0, "case 1 of 2: wrong answer"),
    ],
)
async def test_an_interactor_talks_to_the_solution(scored: Scored, solution: str, reward: float, why: str) -> None:
    found = await scored(solution, interactor())
    assert (found.reward, found.notes[0][: len(why)]) == (reward, why)


async def test_an_interactor_that_always_fails_is_the_tasks_fault(scored: Scored) -> None:
    with pytest.raises(TaskError, match="the task's judge gives no verdict"):
        await scored("pass", interactor("import os\nos.abort()"))


STRICT = """
import os, sys
line = sys.stdin.readline()
if not line.strip().isdecimal():
    os._exit(3)
sys.exit(0 if int(line) == int(open(sys.argv[1]).read()) else 1)
"""


async def test_garbage_that_crashes_an_interactor_is_wrong_if_the_reference_gets_a_verdict(scored: Scored) -> None:
    """The rollout had no reward: the interactor crashed at the empty dialogue too."""
    of = {"interactor": {"language": "python", "source": STRICT}, "cases": [{"input": "6\n"}]}
    for control in ({"reference": "print(6)"}, {}):
        found = await scored("print('hello')", task(**of, **control))
        assert (found.reward, "the judge cannot read it: " in found.notes[0]) == (0.0, True)


async def test_an_interactor_that_fails_in_the_middle_is_the_tasks_fault(scored: Scored) -> None:
    """Honest work had the reward 0: it met the end of its input, and was blamed for the exception."""
    late = (
        "import os, sys\nif sys.stdin.readline():\n    print('?', flush=True)\n    sys.stdin.readline()\n    os.abort()"
    )
    of = {"interactor": {"language": "python", "source": late}, "cases": [{"input": "6\n"}]}
    talks = "print(6, flush=True)\ninput()\nprint(6, flush=True)\ninput()"
    with pytest.raises(TaskError, match="gives no verdict"):
        await scored(talks, task(**of, reference=talks))
