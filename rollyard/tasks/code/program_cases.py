"""Cases with an input: the solution runs once for each of them, and what it prints is compared outside of its sandbox."""

from __future__ import annotations

import errno
import json
import posixpath
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

from rollyard.core.errors import NodeFault, SandboxStartFailed, TaskError
from rollyard.kinds.code_task import CodeCase, CodeTask, ProgramFields
from rollyard.kinds.values.quantity import size_bytes
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation
from rollyard.tasks.code.languages import BUILD, Commands, commands_of
from rollyard.tasks.code.program_runs import ProgramRun, ProgramRunner, ProgramStart, limits_of, program_runner
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.tasks.scoring.output_comparison import OutputRule, surely_equal

MAX_NOTES = 10
MAX_COMPILER_CHARS = 1000
NOT_FOUND = 127
"""Exit code of bash for a program that is not there."""
_TIME_IS_UP = "it was not run, because EVAL's time is used up"


@dataclass(frozen=True)
class JudgedRun:
    run: ProgramRun
    why: str | None
    """Reason why the case did not pass; None if it did."""


RunJudge = Callable[[ProgramRunner, ProgramStart, CodeCase], Awaitable[JudgedRun]]
"""Runs the solution with a case, and judges it."""


@dataclass
class CaseVerdicts:
    passed: list[bool]
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def run_program_cases(code: CodeTask, evaluation: Evaluation, judge: RunJudge, deadline: float) -> CaseVerdicts:
    """Compile the solution, which is in the evaluation's sandbox, and run it with each input. `deadline`: time of the loop's
    clock. Raises SandboxStartFailed; TaskError if the image lacks the language."""
    sandbox = evaluation.sandbox
    assert sandbox is not None
    async with program_runner(sandbox) as runner:
        commands = commands_of(code, code.solution, data_bytes(sandbox, code.case_memory))
        if why := await compile_source(runner, code, commands, code.compile_seconds, deadline):
            verdicts = CaseVerdicts([False] * len(code.cases), {"compile_error": 1.0}, [f"compile error: {why}"])
        else:
            verdicts = await _run_all(code, runner, commands, judge, deadline)
    if not all(verdicts.passed) and await sandbox.was_hurt():
        raise NodeFault(f"while the cases ran: {sandbox.node_fault or 'files of the sandbox were lost'}")
    return verdicts


async def _run_all(
    code: CodeTask, runner: ProgramRunner, commands: Commands, judge: RunJudge, deadline: float
) -> CaseVerdicts:
    found = CaseVerdicts([False] * len(code.cases))
    failed: set[str | None] = set()
    slowest, ran = 0.0, 0
    for number, case in enumerate(code.cases):
        if code.credit != "cases" and case.group in failed:
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            why: str | None = _TIME_IS_UP
        else:
            judged = await judge(runner, solution_start(code, commands, left), case)
            check_start(judged.run, commands.run[0], code.eval_from_snapshot)
            why, slowest, ran = judged.why, max(slowest, judged.run.cpu), ran + 1
        found.passed[number] = why is None
        if why is not None:
            failed.add(case.group)
            found.notes.append(f"case {number + 1} of {len(code.cases)}: {why}")
    if len(found.notes) > MAX_NOTES:
        found.notes[MAX_NOTES:] = [f"{len(found.notes) - MAX_NOTES} further cases did not pass either"]
    found.metrics = {"cases_run": float(ran), "slowest_seconds": slowest}
    return found


def solution_start(code: CodeTask, commands: Commands, left: float) -> ProgramStart:
    memory = size_bytes(code.case_memory) + commands.spare_bytes if code.case_memory is not None else 0
    limits = limits_of(code.case_seconds, left, memory, size_bytes(code.case_output))
    return ProgramStart(commands.run, commands.environment, posixpath.dirname(code.solution), limits)


def data_bytes(sandbox: Sandbox, most: str | None = None) -> int:
    """Return the bytes that a program may use for its data; by default those that leave the sandbox a quarter."""
    return size_bytes(most) if most is not None else sandbox.spec.limits.memory_bytes * 3 // 4


async def compile_source(
    runner: ProgramRunner, program: ProgramFields, commands: Commands, seconds: float, deadline: float
) -> str | None:
    """Return the first lines of the compiler's errors; None if the program can run. Raises TaskError or SandboxStartFailed if
    the image has no compiler."""
    if commands.compile is None:
        return None
    limits = limits_of(seconds, deadline - time.monotonic(), output_bytes=1 << 20)
    start = ProgramStart(commands.compile, commands.environment, BUILD, limits, confined=False)
    run = await runner.run(start)
    from_snapshot = isinstance(program, CodeTask) and program.eval_from_snapshot
    check_start(run, commands.compile[0], from_snapshot)
    if program.compile is not None and run.exit_code == NOT_FOUND:
        _lacks(f"a program of `compile`: {run.errors.strip()[:300]}", from_snapshot)
    if run.ended_well:
        return None
    said = (run.errors or run.output.decode("utf-8", "replace")).strip()[:MAX_COMPILER_CHARS]
    return said if said and run.limit is None else str(run)


def check_start(run: ProgramRun, name: str, from_snapshot: bool) -> None:
    """Raise an error if the image has no program of this name. A missing file of $BUILD is the solution's fault."""
    if run.refused is not None and run.refused[0] == errno.ENOENT and not name.startswith("/"):
        _lacks(name, from_snapshot)


def _lacks(what: str, from_snapshot: bool) -> None:
    if from_snapshot:  # perhaps the agent has removed it
        raise SandboxStartFailed(f"the sandbox has no {what}")
    raise TaskError(f"the image has no {what}: use an image that has it, or set `compile` and `run`")


async def check_tools(code: CodeTask, sandbox: Sandbox, seconds: float) -> None:
    """Raise TaskError if the image lacks the language, and SandboxStartFailed if that is not known."""
    commands = commands_of(code, code.solution, data_bytes(sandbox))
    for words in (commands.compile, commands.run):
        if words is None or words[0].startswith("/"):
            continue
        found = await sandbox.bash(f"command -v {words[0]}", seconds)
        if found.exit_code is None or found.exit_code < 0 or found.exit_code > NOT_FOUND:
            raise SandboxStartFailed(f"bash did not run: {found.output.strip()[-300:] or 'something ended it'}")
        if found.exit_code != 0:
            raise TaskError(f"the image has no {words[0]}: use an image that has it, or set `compile` and `run`")


def comparison(code: CodeTask, checkers: CheckerPool) -> RunJudge:
    """Return the comparison with the expected output. What is not the same text is compared in a checker process."""
    rule = OutputRule(code.compare, code.relative_tolerance, code.absolute_tolerance)
    job = json.dumps(asdict(rule)).encode()

    async def judge(runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> JudgedRun:
        run = await runner.run(start, (case.input or "").encode("utf-8", "surrogatepass"))
        if not run.ended_well:
            return JudgedRun(run, str(run))
        expected = case.output.encode("utf-8", "surrogatepass")
        if surely_equal(rule, expected, run.output):
            return JudgedRun(run, None)
        try:
            answer = await checkers.ask(job, expected, run.output)
        except CheckerKilled:
            answer = {}
        if "why" not in answer:
            return JudgedRun(run, "its output cannot be compared within the limits of time and memory")
        return JudgedRun(run, None if answer["why"] is None else f"wrong answer: {answer['why']}")

    return judge
