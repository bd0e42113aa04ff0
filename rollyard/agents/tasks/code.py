"""Task kind `code`: write a file; hidden cases score it in a fresh sandbox.

The expected values never enter any sandbox: there the calls are only carried out, and what came out is compared here. So
a solution can print, exit, fork, or write where results go; the best it can forge is the right value.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollyard.agents import prompts
from rollyard.agents.tasks.base import Artifact, Message, Score
from rollyard.errors import SandboxStartFailed, TaskError
from rollyard.kinds.rollout import Task, Turn
from rollyard.kinds.tasks import Case, CodeTask, read_code
from rollyard.kinds.wire import MAX_ARTIFACT_BYTES
from rollyard.sandbox.sandbox import Sandbox

FOLDER = "/tmp/check"
DRIVER = Path(__file__).with_name("case_driver.py")
PROBE = "python3 -I -c 'import json, os, select, signal, sys, time, types'"
PROBE_SECONDS = 30.0
MAX_RESULTS_BYTES = 16 << 20


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

    async def evaluate(
        self, task: Task, artifact: Artifact, sandbox: Sandbox | None, turns: Sequence[Turn], seconds: float
    ) -> Score:
        code = read_code(task)
        if "solution" not in artifact:
            return Score(0.0, {"passed": 0.0, "cases": float(len(code.cases)), "missing_file": 1.0})
        assert sandbox is not None
        await self.init(task, sandbox)
        found = await _carry_out(code, artifact["solution"], sandbox, seconds)
        passed = await asyncio.to_thread(_passed, code.cases, found)
        return Score(float(passed == len(code.cases)), {"passed": float(passed), "cases": float(len(code.cases))})


async def _carry_out(code: CodeTask, solution: str, sandbox: Sandbox, seconds: float) -> Sequence[str | None]:
    """What each call came to, as its repr. A sandbox that cannot even run the driver is a wrong task."""
    probe = await sandbox.bash(PROBE, PROBE_SECONDS)
    if probe.timed_out:
        raise SandboxStartFailed(f"python3 did not start within {PROBE_SECONDS:g} s")
    if probe.exit_code != 0:
        raise TaskError(f"hidden cases need a python3 (3.7 or later) in the image: {probe.output.strip()[-300:]}")
    total = min(code.case_seconds * len(code.cases), 0.9 * seconds)
    job = {"solution": code.solution, "calls": [c.call for c in code.cases], "case_seconds": code.case_seconds}
    try:
        await sandbox.write_file(code.solution, solution.encode())
    except OSError as error:
        raise TaskError(f"{code.solution} cannot be written in a fresh sandbox: {error}") from error
    await sandbox.write_file(f"{FOLDER}/driver.py", await asyncio.to_thread(DRIVER.read_bytes))
    await sandbox.write_file(f"{FOLDER}/job.json", json.dumps({**job, "seconds": total}).encode())
    command = shlex.join(["python3", "-I", f"{FOLDER}/driver.py", f"{FOLDER}/job.json", f"{FOLDER}/results.json"])
    await sandbox.bash(command, min(total + 10.0, seconds))
    nothing = [None] * len(code.cases)
    try:
        results = json.loads(await sandbox.read_file(f"{FOLDER}/results.json", MAX_RESULTS_BYTES))
    except (OSError, ValueError, RecursionError):  # the solution ended the driver, or wrote there itself
        return nothing
    return results if isinstance(results, list) and len(results) == len(code.cases) else nothing


def _passed(cases: Sequence[Case], found: Sequence[Any]) -> int:
    """How many came to what was expected; parsing takes a while when a solution answers at length."""
    return sum(isinstance(text, str) and same(case.expect, text) for case, text in zip(cases, found, strict=True))


def same(expect: str, found: str) -> bool:
    """Whether a repr is the expected literal: types count, floats may differ by rounding."""
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
