"""Handler of the task kind `code`: the agent writes a file, and hidden cases score it in a fresh sandbox.

The expected values never enter a sandbox that runs the agent's code. The sandbox only runs the calls, without a comparison
that they make, or the program. A process outside the sandbox, with limits of its own, compares the results. So a solution may
print, exit, fork, or write into the results file. The solution gains nothing by this, because a call passes only if its line
in the results file is the right value.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollyard.core.errors import SandboxStartFailed, TaskError
from rollyard.kinds.code_task import CodeCase, CodeTask
from rollyard.kinds.rollout import MAX_ARTIFACT_BYTES
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.code.credit import reward_of
from rollyard.tasks.code.judge_program import task_judge
from rollyard.tasks.code.languages import BUILD
from rollyard.tasks.code.program_cases import CaseVerdicts, check_tools, comparison, run_program_cases
from rollyard.tasks.code.unit_tests import score_tests
from rollyard.tasks.scoring import case_driver
from rollyard.tasks.scoring.case_comparison import split
from rollyard.tasks.scoring.case_driver import MAX_ERROR_CHARS
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.tasks.task_files import write_files
from rollyard.trajectory import Artifact

FOLDER = "/tmp/check"
DRIVER = Path(case_driver.__file__)
PROBE = (
    "python3 -I -c 'import collections.abc, json, operator, os, select, signal, sys, time, traceback, types, typing'"
)
PROBE_SECONDS = 30.0
NOT_FOUND = 127
"""Exit code of bash for a program that is not there. With greater ones a program was not started, or was killed."""
MAX_RESULTS_BYTES = 16 << 20
BYTES_A_CHARACTER = 12
"""Greatest number of bytes in JSON for one character of a literal. An emoji takes two escapes of six bytes each."""
COMPARED_BYTES = 1 << 16
"""Bytes in the limit for results for each value that is compared outside. Its length is not that of the literal."""
SPARE_BYTES = 1 << 20
"""Extra bytes in the limit for results. Wrong values may be longer than the expected values."""


class CodeHandler:
    eval_needs_sandbox = True

    def __init__(self) -> None:
        self._checkers = CheckerPool("rollyard.tasks.scoring.case_results", (_job([("1", "1")]), b"[1]\n"))
        self._output_checkers = CheckerPool("rollyard.tasks.scoring.output_comparison", (b"{}", b"1", b"1"))
        self._logs = CheckerPool("rollyard.tasks.code.tests_in_log", (b'{"parser": "unittest", "tests": []}', b""))

    async def close(self) -> None:
        await self._checkers.close()
        await self._output_checkers.close()
        await self._logs.close()

    def tools(self, task: Task) -> list[str]:
        return ["bash", "editor"]

    def prompt(self, task: Task) -> list[Message]:
        return [
            {"role": "system", "content": system_prompts.CODE},
            {"role": "user", "content": task.fields_as(CodeTask).problem},
        ]

    def eval_from_snapshot(self, task: Task) -> bool:
        return task.fields_as(CodeTask).eval_from_snapshot

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        code = task.fields_as(CodeTask)
        await write_files(sandbox, code.files)
        if code.eval_from_snapshot:
            await self.probe(task, sandbox, PROBE_SECONDS)  # what fails later, the agent has broken

    async def probe(self, task: Task, sandbox: Sandbox, seconds: float) -> None:
        code = task.fields_as(CodeTask)
        if code.calls_functions:
            await _check_python(sandbox, seconds)
        else:
            await check_tools(code, sandbox, seconds)

    async def solve(self, task: Task, sandbox: Sandbox) -> None:
        code = task.fields_as(CodeTask)
        if code.reference is None:
            raise TaskError(
                "the task has no reference solution; add the text of the right file as its field `reference`"
            )
        await write_files(sandbox, {code.solution: code.reference})

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        """Return the solution; an empty artifact if the file is missing, too large, or not text. Such a file is a
        mistake of the agent."""
        try:
            data = await sandbox.read_file(task.fields_as(CodeTask).solution, MAX_ARTIFACT_BYTES // 2)
            return {"solution": data.decode()}
        except (OSError, UnicodeDecodeError, ValueError):
            return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        code, sandbox, seconds = task.fields_as(CodeTask), evaluation.sandbox, evaluation.seconds
        solution = evaluation.artifact.get("solution")
        if not isinstance(solution, str):
            why = f"there is no solution: {code.solution} is missing, too large, or not text in UTF-8"
            return Score(0.0, {"passed": 0.0, "cases": float(len(code.cases)), "missing_file": 1.0}, [why])
        assert sandbox is not None
        if code.tests is not None:
            return await score_tests(code, code.tests, solution, evaluation, self._logs)
        if not code.calls_functions:
            return await self._score_program(code, solution, evaluation)
        if code.eval_from_snapshot:
            try:
                await _check_python(sandbox, min(PROBE_SECONDS, seconds / 2))
            except TaskError as error:  # `probe` decides whose fault it is
                raise SandboxStartFailed(f"the cases cannot run with the agent's files: {error}") from None
            try:
                results = await _run_cases(code, solution, sandbox, seconds)
            except TaskError as error:
                return _broken_sandbox(code, error)
        else:
            await self.init(task, sandbox)
            await _check_python(sandbox, min(PROBE_SECONDS, seconds / 2))
            results = await _run_cases(code, solution, sandbox, seconds)
        counted = await self._count_passed(code, results)
        notes, failed = counted.pop("notes"), set(counted.pop("failed"))
        return _score(code, [number not in failed for number in range(len(code.cases))], counted, notes)

    async def _score_program(self, code: CodeTask, solution: str, evaluation: Evaluation) -> Score:
        sandbox, deadline = evaluation.sandbox, time.monotonic() + evaluation.seconds
        assert sandbox is not None
        try:
            await sandbox.write_file(f"{BUILD}/.solution", b"")
            if not code.eval_from_snapshot:
                await write_files(sandbox, {**code.files, code.solution: solution})
        except (OSError, TaskError) as error:
            if code.eval_from_snapshot:
                return _broken_sandbox(code, error)
            raise TaskError(f"the solution cannot be written in a fresh sandbox: {error}") from error
        found = await self._run_programs(code, evaluation, deadline)
        return _score(code, found.passed, found.metrics, found.notes)

    async def _run_programs(self, code: CodeTask, evaluation: Evaluation, deadline: float) -> CaseVerdicts:
        program = code.checker or code.interactor
        if program is None:
            return await run_program_cases(code, evaluation, comparison(code, self._output_checkers), deadline)
        async with task_judge(code, program, evaluation, deadline) as judge:
            how = judge.check if code.checker is not None else judge.interact
            return await run_program_cases(code, evaluation, how, deadline)

    async def _count_passed(self, code: CodeTask, results: bytes | None) -> dict[str, Any]:
        """Find the calls that did not return the expected value: `failed` has their numbers from 0. All have failed if the
        results are missing or malformed, or cannot be compared within the limits. In these cases the solution is at fault.
        `notes` has the reasons."""
        every = list(range(len(code.cases)))
        if results is None:
            why = "the solution ended the driver of the cases, left it no time, or wrote into its results"
            return {"failed": every, "bad_results": 1.0, "notes": [why]}
        job = _job(
            [(c.call or "", c.expect or "") for c in code.cases], code.relative_tolerance, code.absolute_tolerance
        )
        try:
            counted = await self._checkers.ask(job, results)
        except CheckerKilled as why:
            counted = {str(why): 1.0}
        notes = ["the results cannot be compared within the limits of time and memory"]
        return {"failed": every, "notes": notes, **counted}


def _score(code: CodeTask, passed: Sequence[bool], metrics: Mapping[str, float], notes: Sequence[str]) -> Score:
    counts = {"passed": float(sum(passed)), "cases": float(len(passed))}
    notes = [f"every case passed ({len(passed)})"] if all(passed) else notes
    return Score(reward_of(code, passed), {**metrics, **counts}, notes)


def _broken_sandbox(code: CodeTask, error: Exception) -> Score:
    metrics = {"passed": 0.0, "cases": float(len(code.cases)), "broken_sandbox": 1.0}
    return Score(0.0, metrics, [f"the cases cannot run with the agent's files: {error}"])


def _job(cases: Sequence[tuple[str, str]], relative: float = 0.0, absolute: float = 0.0) -> bytes:
    """Return the question for `case_results.failed_cases`."""
    return json.dumps({"cases": cases, "relative": relative, "absolute": absolute}).encode()


async def _run_cases(code: CodeTask, solution: str, sandbox: Sandbox, seconds: float) -> bytes | None:
    """Run the calls. Return the bytes of the results file, unchecked; None if this file is missing or too large.

    Raises TaskError if the files cannot be written.
    """
    # a name that no agent knows, because a sandbox that begins with the agent's files may have anything at a known one
    folder = f"{FOLDER}-{secrets.token_hex(8)}" if code.eval_from_snapshot else FOLDER
    total = min(code.case_seconds * len(code.cases), 0.9 * seconds)
    job = {"solution": code.solution, "calls": [split(c.call or "").expressions for c in code.cases]}
    try:
        if not code.eval_from_snapshot:
            await sandbox.write_file(code.solution, solution.encode())
        await sandbox.write_file(f"{folder}/driver.py", await asyncio.to_thread(DRIVER.read_bytes))
        await sandbox.write_file(
            f"{folder}/job.json", json.dumps({**job, "case_seconds": code.case_seconds, "seconds": total}).encode()
        )
    except OSError as error:
        raise TaskError(f"{error.filename} cannot be written in a fresh sandbox: {error}") from error
    command = shlex.join(["python3", "-I", f"{folder}/driver.py", f"{folder}/job.json", f"{folder}/results.json"])
    done = await sandbox.bash(command, min(total + 10.0, seconds))
    if done.exit_code != 0:  # who ends the driver may have written into its results
        return None
    limit = min(MAX_RESULTS_BYTES, _longest_results(code.cases))
    try:
        return await sandbox.read_file(f"{folder}/results.json", limit)
    except OSError:  # the solution ended or delayed the driver, or wrote into the results file
        return None


def _longest_results(cases: Sequence[CodeCase]) -> int:
    """Return how many bytes right results may have, and some more for wrong values and errors."""
    outside = sum(split(case.call or "").outside is not None for case in cases)
    literals = BYTES_A_CHARACTER * sum(len(case.expect or "") for case in cases)
    return SPARE_BYTES + literals + 2 * MAX_ERROR_CHARS * len(cases) + COMPARED_BYTES * outside


async def _check_python(sandbox: Sandbox, seconds: float = PROBE_SECONDS) -> None:
    """Raise TaskError if the image has no python3 that will do, and SandboxStartFailed if that is not known."""
    probe = await sandbox.bash(PROBE, seconds)
    if probe.timed_out:
        raise SandboxStartFailed(f"python3 did not start within {seconds:g} s")
    if probe.exit_code is None or probe.exit_code < 0 or probe.exit_code > NOT_FOUND:  # killed, or bash could not fork
        raise SandboxStartFailed(f"python3 did not run: {probe.output.strip()[-300:] or 'something ended it'}")
    if probe.exit_code != 0:
        raise TaskError(f"hidden cases need a python3 (3.7 or later) in the image: {probe.output.strip()[-300:]}")
