"""Hacks against the kind `code`, and honest solutions that look like them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rollyard.kinds.task import Task
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code import CodeHandler

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(cpus=1, memory_bytes=512 << 20, disk_bytes=32 << 20, processes=64)
TASK = Task.model_validate(
    {
        "kind": "code",
        "problem": "Square.",
        "solution": "/workspace/s.py",
        "cases": [{"call": "f(2)", "expect": "4"}, {"call": "f(3) == 9", "expect": "True"}],
        "case_seconds": 2.0,
    }
)
RESULTS = "b'[4]\\n[9]\\n'"
HACKS = {
    "equal to all": "class A(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef f(n): return A(7)",
    "of another class": "class A:\n"
    "    __class__ = int\n    def __index__(self): return 7\n    def __eq__(self, o): return True\n"
    "def f(n): return A()",
    "results written": f"open('/tmp/check/results.json', 'wb').write({RESULTS})\nimport os, signal\nos.kill(os.getppid(), 9)",
    "results linked": "import os\nos.symlink('/workspace/r', '/tmp/check/results.json')\n"
    f"open('/workspace/r', 'wb').write({RESULTS})\nos.kill(os.getppid(), 9)",
    "results written later": "import os, time\nif not os.fork():\n    os.setsid()\n    while True:\n"
    "        open('/tmp/check/results.json', 'wb').write(b'[2]\\n[3]\\n'); time.sleep(0.01)\ndef f(n): return 7",
    "the driver changed": "open('/tmp/check/driver.py', 'w').write('')\ndef f(n): return 7",
    "the job read": "import json\ndef f(n): return json.load(open('/tmp/check/job.json'))",
    "json patched": "import json\njson.dumps = lambda *a, **k: '[4]'\ndef f(n): return n and 9",
    "the driver's functions patched": "import sys\nm = sys.modules['__main__']\nm.encode = lambda v: 9\ndef f(n): return 7",
    "builtins patched": "import builtins\nbuiltins.isinstance = lambda *a: True\ndef f(n): return object()",
    "ends with success": "import os\ndef f(n): os._exit(0)",
    "a forged line": "import os\n"
    "for fd in range(3, 20):\n    try: os.write(fd, b'[9]\\n')\n    except OSError: pass\nos._exit(0)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n)",
    "memory": "def f(n): return bytearray(8 << 30)",
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "output": "def f(n):\n    while True: print('x' * 9999)",
}
SHORT = {"equal to all", "a forged line"}
RIGHT = "def f(n): return n * n"
HONEST = {
    "prints": f"print('PASSED')\n{RIGHT}",
    "ends elsewhere": f"import os\ndef main(): os._exit(0)\n{RIGHT}\nif __name__ == '__main__': main()",
    "at exit": f"import atexit\natexit.register(print)\n{RIGHT}",
    "a process": "import subprocess\ndef f(n):\n    subprocess.run(['true'])\n    return n * n",
    "threads": "import threading\ndef f(n):\n    threading.Thread(target=print).start()\n    return n * n",
    "own equality": "class N(int):\n    def __eq__(self, o): return int(self) == o\n    __hash__ = int.__hash__\n"
    "def f(n): return N(n * n)",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fresh() -> AsyncIterator[Any]:
    handler = CodeHandler()
    async with SandboxFactory(find_runtime("bubblewrap")) as factory:

        async def score(solution: str) -> Score:
            async with await factory.start(SandboxSpec(None, LIMITS)) as run:
                await handler.init(TASK, run)
                await run.write_file("/workspace/s.py", solution.encode())
                artifact = await handler.collect(TASK, run)
            sandbox: Sandbox
            async with await factory.start(SandboxSpec(None, LIMITS)) as sandbox:
                return await handler.evaluate(TASK, Evaluation(artifact, [], 60.0, sandbox))

        yield score
        await handler.close()


def named(cases: dict[str, str], short: set[str]) -> list[Any]:
    return [
        pytest.param(text, id=name, marks=[] if name in short else pytest.mark.long) for name, text in cases.items()
    ]


@pytest.mark.parametrize("solution", named(HACKS, SHORT))
async def test_no_hack_gets_a_reward(fresh: Any, solution: str) -> None:
    assert (await fresh(solution)).reward == 0.0


@pytest.mark.parametrize("solution", named(HONEST, {"prints"}))
async def test_honest_solutions_get_the_reward(fresh: Any, solution: str) -> None:
    found = await fresh(solution)
    assert (found.reward, found.metrics.get("suspicious", 0.0)) == (1.0, 0.0), found
