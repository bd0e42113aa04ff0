"""Task kind `code`: write a file; hidden cases score it in a fresh sandbox.

The expected values never enter any sandbox: there the calls are only carried out, and what came out is compared here. So
a solution can print, exit, fork, or write where results go; the best it can forge is the right value.
"""

from __future__ import annotations

import ast
import json
import math
import shlex
from collections.abc import Sequence
from typing import Any

from rollyard.agents import prompts
from rollyard.agents.tasks.base import Artifact, Message, Score
from rollyard.errors import TaskError
from rollyard.kinds.rollout import Task, Turn
from rollyard.kinds.tasks import CodeTask, read_code
from rollyard.kinds.wire import MAX_ARTIFACT_BYTES
from rollyard.sandbox.sandbox import Sandbox

FOLDER = "/tmp/check"
MAX_RESULTS_BYTES = 16 << 20
DRIVER = '''\
import json, os, select, signal, sys, time

def carry_out(call, path, seconds):
    """repr of the call's value, from a process of its own; None when there is none in time."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(out)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        try:
            space = {"__name__": "solution", "__file__": path}
            with open(path) as file:
                exec(compile(file.read(), path, "exec"), space)
            os.write(into, repr(eval(call, space)).encode()[:65000])
        finally:
            os._exit(0)
    os.close(into)
    found, deadline = b"", time.monotonic() + seconds
    while len(found) < 65536:
        ready, _, _ = select.select([out], [], [], max(0, deadline - time.monotonic()))
        chunk = os.read(out, 65536) if ready else b""
        if not chunk:
            break
        found += chunk
    os.close(out)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)
    return found.decode(errors="replace") if found else None

job = json.load(open(sys.argv[1]))
results = [carry_out(call, job["solution"], job["seconds"]) for call in job["calls"]]
with open(sys.argv[2], "w") as file:
    json.dump(results, file)
'''


class CodeHandler:
    eval_needs_sandbox = True

    def image(self, task: Task) -> str | None:
        return read_code(task).image

    def tools(self, task: Task) -> list[str]:
        return ["bash", "editor"]

    def prompt(self, task: Task) -> list[Message]:
        return [{"role": "system", "content": prompts.CODE}, {"role": "user", "content": read_code(task).problem}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        for path, text in read_code(task).files.items():
            try:
                await sandbox.write_file(path, text.encode())
            except OSError as error:
                raise TaskError(f"the task's file {path} cannot be written: {error}") from error

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """The solution; nothing when it is missing, too large, or no text: that is the agent's doing."""
        try:
            data = await sandbox.read_file(read_code(task).solution, MAX_ARTIFACT_BYTES // 2)
            return {"solution": data.decode()}
        except (OSError, UnicodeDecodeError, ValueError):
            return {}

    async def evaluate(self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn]) -> Score:
        code = read_code(task)
        if "solution" not in artifact:
            return Score(0.0, {"passed": 0.0, "cases": float(len(code.cases)), "missing_file": 1.0})
        assert sandbox is not None
        found = await _carry_out(code, artifact["solution"], sandbox)
        passed = sum(same(case.expect, text) for case, text in zip(code.cases, found, strict=True))
        return Score(float(passed == len(code.cases)), {"passed": float(passed), "cases": float(len(code.cases))})


async def _carry_out(code: CodeTask, solution: str, sandbox: Sandbox) -> list[str | None]:
    """What each call came to, as its repr. A sandbox that cannot even run the driver is a wrong task."""
    job = {"solution": f"{FOLDER}/solution.py", "calls": [c.call for c in code.cases], "seconds": code.case_seconds}
    script = f"mkdir -p {FOLDER} && command -v python3"
    ready = await sandbox.bash(script, 30.0)
    if ready.exit_code != 0:
        raise TaskError("the image has no python3, which hidden cases need")
    await sandbox.write_file(f"{FOLDER}/solution.py", solution.encode())
    await sandbox.write_file(f"{FOLDER}/driver.py", DRIVER.encode())
    await sandbox.write_file(f"{FOLDER}/job.json", json.dumps(job).encode())
    command = shlex.join(["python3", "-I", f"{FOLDER}/driver.py", f"{FOLDER}/job.json", f"{FOLDER}/results.json"])
    await sandbox.bash(command, code.case_seconds * len(code.cases) + 10.0)
    try:
        results = json.loads(await sandbox.read_file(f"{FOLDER}/results.json", MAX_RESULTS_BYTES))
    except (OSError, ValueError):  # the solution ended the driver
        return [None] * len(code.cases)
    if not isinstance(results, list) or len(results) != len(code.cases):
        return [None] * len(code.cases)
    return [r if isinstance(r, str) else None for r in results]


def same(expect: str, found: str | None) -> bool:
    """Whether a repr is the expected literal: types count, floats may differ by rounding."""
    if found is None:
        return False
    try:
        return _equal(ast.literal_eval(expect), ast.literal_eval(found))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError, OverflowError):  # 10**400 is no float
        return False


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        return numbers and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)
