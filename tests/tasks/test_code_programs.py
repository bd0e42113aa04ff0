"""Cases with an input: whatever a program does, its score is what it printed within its limits."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from rollyard.core.errors import Invalid, SandboxStartFailed, TaskError
from rollyard.kinds.task import Task
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code.handler import CodeHandler
from tests.support.plain_sandbox import LIMITS

pytestmark = pytest.mark.asyncio(loop_scope="module")

SQUARES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in (2, 3, 11)]
READ = "n = int(input())\n"
RIGHT = READ + "print(n * n)\n"
Scored = Callable[..., Awaitable[Score]]


def task(cases: list[dict[str, str]] = SQUARES, **more: Any) -> Task:
    fields = {"problem": "Square.", "solution": "/workspace/s.py", "cases": cases, "case_seconds": 5.0}
    language = {} if "run" in more else {"language": "python"}
    return Task.model_validate({"kind": "code", **fields, **language, **more})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory() -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(find_runtime("bubblewrap")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(factory: SandboxFactory) -> AsyncIterator[Sandbox]:
    async with await factory.start(SandboxSpec(None, LIMITS)) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scored(sandbox: Sandbox) -> AsyncIterator[Scored]:
    handler = CodeHandler()

    async def score(solution: str, of: Task | None = None, seconds: float = 60.0) -> Score:
        return await handler.evaluate(of or task(), Evaluation({"solution": solution}, [], seconds, sandbox))

    yield score
    await handler.close()


async def test_a_right_program_gets_its_reward(scored: Scored) -> None:
    found = await scored(RIGHT)
    assert (found.reward, found.notes) == (1.0, ["every case passed (3)"])
    assert (found.metrics["passed"], found.metrics["cases"], found.metrics["cases_run"]) == (3.0, 3.0, 3.0)


ODD = {
    "no line feed": READ + "print(n * n, end='')",
    "spaces": READ + "print('', n * n, ' ')",
    "reads nothing": "import sys, os\nos.close(0)\nprint('4' if 0 else 4)",
    "prints errors": READ + "import sys\nprint('x' * 100000, file=sys.stderr)\nprint(n * n)",
    "a file": READ + "open('note.txt', 'w').write(str(n * n))\nprint(open('note.txt').read())",
    "a temporary file": READ
    + "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'x')\nopen('/tmp/x', 'w').close()\nprint(n * n)",
    "a child": READ + "import subprocess, sys\nsubprocess.run([sys.executable, '-c', f'print({n * n})'])",
    "a pool": READ
    + "from concurrent.futures import ProcessPoolExecutor as P\nwith P(2) as p:\n    print(*p.map(abs, [n * n]))",
    "a lock in shared memory": READ + "import multiprocessing\nwith multiprocessing.Lock():\n    print(n * n)",
    "deep recursion": READ + "import sys\nsys.setrecursionlimit(200000)\n"
    "def f(k):\n    return 0 if k == 0 else 1 + f(k - 1)\nprint(n * n + f(50000) - 50000)",
    "a module beside it": READ + "import helper\nprint(helper.square(n))",
    "a file of the task": READ + "print(n * n + len(open('data/empty.txt').read()))",
    "left behind": READ
    + "import os\nprint(n * n, flush=True)\nif not os.fork():\n    os.setsid()\n    while True: pass",
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_but_honest_program_gets_its_reward(scored: Scored, name: str) -> None:
    files = {"/workspace/helper.py": "def square(n): return n * n", "/workspace/data/empty.txt": ""}
    cases = SQUARES[:1] if name == "reads nothing" else SQUARES[:2]
    found = await scored(ODD[name], task(cases, files=files))
    assert found.reward == 1.0, found


WRONG = {
    "print(5)": "wrong answer: token 1 is '5', expected '4'",
    "pass": "wrong answer: it has 0 tokens, expected 1",
    "print(4, 4)": "wrong answer: it has 2 tokens, expected 1",
    "print(4); raise ValueError('no')": "it ended with exit code 1: ValueError: no",
    "def f(:": "it ended with exit code 1: SyntaxError: invalid syntax",
    "print(4); import os; os._exit(3)": "it ended with exit code 3",
    "import os; os.abort()": "it ended by SIGABRT",
    "while True: pass": "it took more than 0.5 s of CPU time",
    "import os\nos.fork()\nos.fork()\nwhile True: pass": "it took more than 0.5 s of CPU time",
    "x = b'x' * (150 << 20); input()": "it used more than 100 MiB of memory",
    "while True: print('x' * 9999)": "it printed more than 65536 bytes",
    "import os\nprint(4, flush=True)\nos.kill(os.getppid(), 9)\nwhile True: pass": None,
}


@pytest.mark.parametrize("solution", WRONG)
async def test_a_note_says_why_the_first_case_did_not_pass(scored: Scored, solution: str) -> None:
    found = await scored(solution, task(case_seconds=0.5, case_memory="100M", case_output="64K"))
    assert (found.reward, found.metrics["passed"], len(found.notes)) == (0.0, 0.0, 1)
    if (why := WRONG[solution]) is not None:
        assert found.notes[0].startswith(f"case 1 of 3: {why}")


async def test_a_program_that_sleeps_is_ended(scored: Scored) -> None:
    found = await scored("import time\nprint(4, flush=True)\ntime.sleep(999)", task(SQUARES[:1]), 1.0)
    assert found.reward == 0.0
    assert found.notes[0].startswith("case 1 of 1: it had not ended after ")


async def test_a_stopped_or_ended_runner_costs_the_program_its_cases(scored: Scored, sandbox: Sandbox) -> None:
    """Landlock refuses such signals on newer kernels, so the program goes on."""
    found = await scored("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nprint(4)", task(SQUARES[:2]))
    assert found.reward == 0.0
    assert (await sandbox.bash("echo alive", 10)).output.strip() == "alive"


LEAVES = (
    "import os, sys\nplaces = ['/tmp/l', '/var/tmp/l', '/dev/shm/l', '/workspace/l', os.path.expanduser('~/l'), 'l']\n"
)
MARK = """
n = int(input())
if n == 0:
    for place in places:
        try: open(place, 'w').write('x')
        except OSError: pass
    for path in ('/workspace/data', __file__):
        try: os.chmod(path, 0o700)
        except OSError: pass
        try: os.setxattr(path, 'user.l', b'x')
        except OSError: pass
    deep = '/tmp/deep'
    os.makedirs(deep)
    os.chdir(deep)
    for _ in range(1200):
        os.mkdir('d'); os.chdir('d')
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            pass
    print(0)
else:
    pids = [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) > 1]
    alive = [pid for pid in pids if b's.py' in open(f'/proc/{pid}/cmdline', 'rb').read()]
    marked = [p for p in ('/workspace/data', __file__) if os.stat(p).st_mode & 0o777 == 0o700]
    print([place for place in places if os.path.exists(place)], len(alive), marked, os.listdir('/tmp')[1:])
"""


async def test_what_one_case_leaves_behind_changes_no_other_case(scored: Scored) -> None:
    cases = [{"input": "0\n", "output": "0\n"}, {"input": "1\n", "output": "[] 1 [] []\n"}]
    found = await scored(LEAVES + MARK, task(cases, files={"/workspace/data/empty.txt": ""}))
    assert found.reward == 1.0, found.notes


async def test_inputs_and_outputs_are_in_no_file_and_no_later_input_is_there_early(scored: Scored) -> None:
    search = (
        "import os, subprocess\ninput()\n"
        "r = subprocess.run(['grep', '-rlsE', 'tell-[n]obody', '/tmp', '/workspace', '/dev/shm', '/proc/self/environ'],"
        " capture_output=True)\n"
        "for pid in os.listdir('/proc'):\n"
        "    if pid.isdigit() and int(pid) > 1 and int(pid) != os.getpid():\n"
        "        try: open(f'/proc/{pid}/mem', 'rb'); os.listdir(f'/proc/{pid}/fd'); print('open', pid)\n"
        "        except OSError: pass\n"
        "print(r.stdout.decode(), 'end')\n"
    )
    cases = [{"input": "tell-nobody-1\n", "output": "end tell-nobody"}, {"input": "tell-nobody-2\n", "output": "end"}]
    found = await scored(search, task(cases))
    assert found.notes == ["case 1 of 2: wrong answer: it has 1 tokens, expected 2"]


async def test_large_inputs_and_outputs_pass_whole(scored: Scored) -> None:
    text = "".join(f"{n}\n" for n in range(500_000))
    found = await scored("import sys\nsys.stdout.write(sys.stdin.read())", task([{"input": text, "output": text}]))
    assert found.reward == 1.0, found
    unread = await scored("print(1)", task([{"input": text, "output": "1"}] * 2))
    assert unread.reward == 1.0, unread


async def test_a_task_may_name_its_own_commands(scored: Scored) -> None:
    own = task(
        solution="/workspace/s.sh", compile="sed s/TWICE/2/ $SOLUTION > $BUILD/program", run="bash $BUILD/program"
    )
    assert (await scored("read n; echo $((n ** TWICE))", own)).reward == 1.0
    broken = task(solution="/workspace/s.sh", compile="echo line 1: bad >&2; exit 1", run="bash $SOLUTION")
    found = await scored("read n", broken)
    assert (found.reward, found.metrics["compile_error"]) == (0.0, 1.0)
    assert found.notes == ["compile error: line 1: bad"]


async def test_an_image_without_the_language_is_the_tasks_fault(scored: Scored) -> None:
    for own in (
        {"run": "true", "compile": "no-such-compiler $SOLUTION"},
        {"language": "go", "solution": "/workspace/s.go"},
    ):
        if own.get("language") == "go" and shutil.which("go"):
            continue
        with pytest.raises(TaskError, match="the image has no "):
            await scored("package main", task(**own))


async def test_compiled_programs_are_judged_like_others(scored: Scored) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    in_c = task(language="c", solution="/workspace/s.c", case_seconds=1.0)
    head = '#include <stdio.h>\nint main() { long n; scanf("%ld", &n);'
    assert (await scored(f'{head} printf("%ld", n * n); }}', in_c)).reward == 1.0
    crashed = await scored(f"{head} *(volatile int *)0 = 1; }}", in_c)
    assert crashed.notes == ["case 1 of 3: it ended by SIGSEGV"]
    wrong = await scored("int main() { return x; }", in_c)
    assert (wrong.metrics["compile_error"], "x" in wrong.notes[0]) == (1.0, True)
    assert wrong.notes[0].startswith("compile error: /workspace/s.c:")


GROUPS = [{"input": f"{n}\n", "output": f"{n * n}\n", "group": "small" if n < 10 else "large"} for n in (1, 2, 10, 11)]
SMALL = READ + "print(n * n if n < 10 else 100)\n"


async def test_partial_credit_is_a_choice_of_the_task(scored: Scored) -> None:
    plain = [{name: case[name] for name in ("input", "output")} for case in GROUPS]
    assert (await scored(SMALL, task(plain))).reward == 0.0
    assert (await scored(SMALL, task(plain, credit="cases"))).reward == 0.75
    points = task(GROUPS, credit="groups", points={"small": 30, "large": 70})
    assert (await scored(SMALL, points)).reward == 0.3
    found = await scored(READ + "print(1 if n == 1 else 100)", points)
    assert (found.reward, found.metrics["cases_run"]) == (0.0, 4.0)
    assert (await scored(RIGHT, points)).reward == 1.0


async def test_what_the_agent_removed_is_judged_by_its_probe(scored: Scored, sandbox: Sandbox) -> None:
    of = task(run="bash $SOLUTION", eval_from_snapshot=True, solution="/workspace/own.sh")
    await sandbox.write_file("/workspace/own.sh", b"read n; echo $((n * n))")
    assert (await scored("ignored", of)).reward == 1.0
    of = task(language="rust", solution="/workspace/s.rs", eval_from_snapshot=True)
    if shutil.which("rustc", path="/usr/bin:/bin") is None:
        with pytest.raises(SandboxStartFailed, match="the sandbox has no rustc"):
            await scored("fn main() {}", of)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"run": None}, "need `language`, or `run`"),
        ({"cases": [*SQUARES, {"call": "f()", "expect": "1"}], "run": "true"}, "write all cases in one form"),
        ({"cases": [{"call": "f()", "expect": "1"}], "language": "c"}, "leave out `language`"),
        ({"cases": [{"input": "1", "expect": "1"}], "run": "true"}, "write either `call` and `expect`, or `input`"),
        ({"run": "true", "credit": "groups"}, "needs `points` for each group"),
        ({"run": "true", "points": {"a": 1}}, "count with `credit: groups` alone"),
        ({"run": "true", "compare": "lines", "relative_tolerance": 0.1}, "tolerances need `compare: tokens`"),
        ({"run": "true", "solution": "/tmp/s.py"}, "choose another folder"),
        ({"run": "true", "case_output": "1G"}, "at most 64M"),
    ],
)
async def test_a_wrong_task_says_what_to_write(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        CodeHandler().prompt(task(**{"cases": SQUARES, **fields}))
