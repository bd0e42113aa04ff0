"""Task kind `code`: the agent writes a file, and hidden cases score it in a fresh sandbox.

The expected values never enter a sandbox. The sandbox only runs the calls. A process outside the sandbox, with limits
of its own, compares the results. So a solution may print, exit, fork, or write into the results file. The solution
gains nothing by this, because a call passes only if its line in the results file is the right value.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed, TaskError
from rollyard.kinds.rollout import Task, Turn
from rollyard.kinds.task_fields import CodeCase, CodeTask, read_code
from rollyard.node.agents import system_prompts
from rollyard.node.agents.scoring import case_driver
from rollyard.node.agents.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.node.agents.tasks.base import Artifact, Message, Score
from rollyard.node.agents.tasks.task_files import write_files
from rollyard.node.sandbox.sandbox import Sandbox
from rollyard.wire.node import MAX_ARTIFACT_BYTES

FOLDER = "/tmp/check"
DRIVER = Path(case_driver.__file__)
PROBE = "python3 -I -c 'import json, operator, os, select, signal, sys, time, types, typing'"
PROBE_SECONDS = 30.0
MAX_RESULTS_BYTES = 16 << 20
BYTES_A_CHARACTER = 12
"""Greatest number of bytes in JSON for one character of a literal. An emoji takes two escapes of six bytes each."""
SPARE_BYTES = 1 << 20
"""Extra bytes in the limit for results. Wrong values may be longer than the expected values."""


class CodeHandler:
    eval_needs_sandbox = True

    def __init__(self) -> None:
        self._checkers = CheckerPool("rollyard.node.agents.scoring.case_results", (b'["1"]', b"1\n"))

    async def close(self) -> None:
        await self._checkers.close()

    def image(self, task: Task) -> str | None:
        return read_code(task).image

    def tools(self, task: Task) -> list[str]:
        return ["bash", "editor"]

    def prompt(self, task: Task) -> list[Message]:
        return [
            {"role": "system", "content": system_prompts.CODE},
            {"role": "user", "content": read_code(task).problem},
        ]

    def eval_from_snapshot(self, task: Task) -> bool:
        return read_code(task).eval_from_snapshot

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        code = read_code(task)
        await write_files(sandbox, code.files)
        if code.eval_from_snapshot:
            await _check_python(sandbox)  # what fails later, the agent has broken

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the solution; an empty artifact if the file is missing, too large, or not text. Such a file is a
        mistake of the agent."""
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
        if code.eval_from_snapshot:
            try:
                results = await _run_cases(code, artifact["solution"], sandbox, seconds)
            except TaskError:
                return Score(0.0, {"passed": 0.0, "cases": float(len(code.cases)), "broken_sandbox": 1.0})
        else:
            await self.init(task, sandbox)
            results = await _run_cases(code, artifact["solution"], sandbox, seconds)
        metrics = await self._count_passed(code.cases, results)
        return Score(float(metrics["passed"] == len(code.cases)), {**metrics, "cases": float(len(code.cases))})

    async def _count_passed(self, cases: Sequence[CodeCase], results: bytes | None) -> dict[str, float]:
        """Count the calls that returned the expected value. The count is 0 if the results are missing or malformed, or
        cannot be compared within the limits. In these cases the solution is at fault."""
        if results is None:
            return {"passed": 0.0, "bad_results": 1.0}
        try:
            return {"passed": 0.0, **await self._checkers.ask(json.dumps([c.expect for c in cases]).encode(), results)}
        except CheckerKilled as why:
            return {"passed": 0.0, str(why): 1.0}


async def _run_cases(code: CodeTask, solution: str, sandbox: Sandbox, seconds: float) -> bytes | None:
    """Run the calls. Return the bytes of the results file, unchecked; None if this file is missing or too large.

    Raises TaskError if the image cannot run the driver or the files cannot be written, and SandboxStartFailed if python3
    does not start in time.
    """
    await _check_python(sandbox)
    # a name that no agent knows, because a sandbox that begins with the agent's files may have anything at a known one
    folder = f"{FOLDER}-{secrets.token_hex(8)}" if code.eval_from_snapshot else FOLDER
    total = min(code.case_seconds * len(code.cases), 0.9 * seconds)
    job = {"solution": code.solution, "calls": [c.call for c in code.cases], "case_seconds": code.case_seconds}
    try:
        if not code.eval_from_snapshot:
            await sandbox.write_file(code.solution, solution.encode())
        await sandbox.write_file(f"{folder}/driver.py", await asyncio.to_thread(DRIVER.read_bytes))
        await sandbox.write_file(f"{folder}/job.json", json.dumps({**job, "seconds": total}).encode())
    except OSError as error:
        raise TaskError(f"{error.filename} cannot be written in a fresh sandbox: {error}") from error
    command = shlex.join(["python3", "-I", f"{folder}/driver.py", f"{folder}/job.json", f"{folder}/results.json"])
    await sandbox.bash(command, min(total + 10.0, seconds))
    limit = min(MAX_RESULTS_BYTES, SPARE_BYTES + BYTES_A_CHARACTER * sum(len(c.expect) for c in code.cases))
    try:
        return await sandbox.read_file(f"{folder}/results.json", limit)
    except OSError:  # the solution ended or delayed the driver, or wrote into the results file
        return None


async def _check_python(sandbox: Sandbox) -> None:
    probe = await sandbox.bash(PROBE, PROBE_SECONDS)
    if probe.timed_out:
        raise SandboxStartFailed(f"python3 did not start within {PROBE_SECONDS:g} s")
    if probe.exit_code != 0:
        raise TaskError(f"hidden cases need a python3 (3.7 or later) in the image: {probe.output.strip()[-300:]}")
