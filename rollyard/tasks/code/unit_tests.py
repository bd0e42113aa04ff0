"""Unit tests as the form of a task: the tests run beside the solution, and their log is read outside of the sandbox.

The solution is in the process of its tests, so it can patch their framework, end it, or print what it would print. Two things
hold against this: each test of the task must be in the log, and in a second run, in a fresh sandbox, the tests are changed so
that no code can pass them. If one of those passes, the results are forged.
"""

from __future__ import annotations

import ast
import json
import posixpath
import shlex
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollyard.core.errors import NodeFault, SandboxStartFailed, TaskError
from rollyard.kinds.code_task import CodeTask, UnitTests
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation, Score
from rollyard.tasks.code.credit import reward_of_share
from rollyard.tasks.code.tests_in_log import ABSENT, GOOD
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.tasks.swe.control_tests import control_tests
from rollyard.tasks.swe.test_run import RunLog, run_script
from rollyard.tasks.task_files import write_files

MAX_NOTES = 10
MOST_LOG_CHARS = 1000
PROBE_SECONDS = 60.0
Words = Sequence[str]
"""Name of a test, or the words that its name in a log has."""


@dataclass(frozen=True)
class _Found:
    statuses: Sequence[str]
    bad: Sequence[str]
    log: RunLog

    @property
    def passed(self) -> list[bool]:
        return [status in GOOD for status in self.statuses]


async def score_tests(
    code: CodeTask, tests: UnitTests, solution: str, evaluation: Evaluation, logs: CheckerPool
) -> Score:
    """Raises TaskError if the image lacks the framework, or a test file is no Python."""
    assert evaluation.sandbox is not None
    wanted, seconds = wanted_tests(tests), min(tests.seconds, 0.45 * evaluation.seconds)
    await _check_framework(tests, evaluation.sandbox)
    found = await _run(code, tests, tests.files, solution, wanted, evaluation.sandbox, seconds, logs)
    counts = {"passed": float(sum(found.passed)), "cases": float(len(wanted))}
    notes = [
        f"{'.'.join(test)}: {status.lower()}"
        for test, status in zip(wanted, found.statuses, strict=True)
        if status not in GOOD
    ]
    notes += [f"{name}: failed" for name in found.bad if not notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"{len(notes) - MAX_NOTES} further tests did not pass either"]
    reward = reward_of_share(code, found.passed if not found.bad or notes else [False])
    if reward < 1.0 or notes:
        if await evaluation.sandbox.was_hurt():
            raise NodeFault(f"while the tests ran: {evaluation.sandbox.node_fault or 'files were lost'}")
        notes += [f"the tests had not ended after {seconds:g} s"] * found.log.timed_out
        notes += [f"the log ends with: {found.log.end(MOST_LOG_CHARS)}"]
    if reward > 0 and (forged := await _forged(code, tests, solution, evaluation, seconds, logs)):
        why = f"tests pass although they cannot, so their results are forged: {', '.join(forged)[:400]}"
        return Score(0.0, {**counts, "forged": 1.0}, [why])
    return Score(reward, counts, notes or [f"every test passed ({len(wanted)})"])


def wanted_tests(tests: UnitTests) -> list[Words]:
    """Return the tests that must pass. Raises TaskError if a test file is no Python."""
    if tests.names:
        return [[name] for name in tests.names]
    found = [words for path, text in tests.python_tests.items() for words in _tests_of(path, text, tests.framework)]
    if not found:
        raise TaskError("`tests.files` has no test: write functions named `test_...`, for unittest in a TestCase")
    return found


def _tests_of(path: str, text: str, framework: str) -> Iterator[Words]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TaskError(f"the test file {path} is no Python: {error}") from None
    module = path.removesuffix(".py")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ([module, node.name, name] for name in _functions(node.body))
    if framework == "pytest":
        yield from ([module, name] for name in _functions(tree.body))


def _functions(body: Sequence[ast.stmt]) -> list[str]:
    made = ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in body if isinstance(node, made) and node.name.startswith("test")]


async def _run(
    code: CodeTask,
    tests: UnitTests,
    files: Mapping[str, str],
    solution: str,
    wanted: Sequence[Words],
    sandbox: Sandbox,
    seconds: float,
    logs: CheckerPool,
) -> _Found:
    folder = posixpath.dirname(code.solution)
    placed = {posixpath.join(folder, path): text for path, text in files.items()}
    await write_files(sandbox, {**code.files, code.solution: solution, **placed})
    log = await run_script(sandbox, folder, _command(tests), seconds)
    job = json.dumps({"parser": tests.log_parser or tests.framework, "tests": wanted}).encode()
    try:
        answer = await logs.ask(job, log.output)
    except CheckerKilled:
        answer = {}
    return _Found(answer.get("statuses", [ABSENT] * len(wanted)), answer.get("bad", []), log)


def _command(tests: UnitTests) -> str:
    if tests.command is not None:
        return tests.command
    files = sorted(tests.python_tests)
    if tests.framework == "pytest":
        return f"python3 -B -m pytest -q -rA -p no:cacheprovider {shlex.join(files)}"
    return f"python3 -B -m unittest -v {shlex.join(path.removesuffix('.py') for path in files)}"


async def _check_framework(tests: UnitTests, sandbox: Sandbox) -> None:
    if tests.command is not None:
        return
    found = await sandbox.bash(f"python3 -I -c 'import {tests.framework}'", PROBE_SECONDS)
    if found.exit_code == 0:
        return
    said = found.output.strip()[-300:]
    if found.exit_code in (1, 127):
        raise TaskError(f"the tests need {tests.framework} in the image: {said}")
    raise SandboxStartFailed(f"python3 did not run: {said or 'something ended it'}")


async def _forged(
    code: CodeTask, tests: UnitTests, solution: str, evaluation: Evaluation, seconds: float, logs: CheckerPool
) -> Collection[str]:
    """Return the control tests that pass."""
    changed = {path: control_tests(text.encode()) for path, text in tests.python_tests.items()}
    controls: list[Words] = [
        words
        for path, (source, names) in changed.items()
        for words in _tests_of(path, source.decode(), tests.framework)
        if words[-1] in names
    ]
    if not controls:
        return ()
    files = {**tests.files, **{path: source.decode() for path, (source, _) in changed.items()}}
    async with _fresh(evaluation) as sandbox:
        found = await _run(code, tests, files, solution, controls, sandbox, seconds, logs)
    return [".".join(test) for test, good in zip(controls, found.passed, strict=True) if good]


@asynccontextmanager
async def _fresh(evaluation: Evaluation) -> AsyncIterator[Sandbox]:
    assert evaluation.another is not None
    async with evaluation.another() as sandbox:
        yield sandbox
