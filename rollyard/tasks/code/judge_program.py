"""A task's own judge: a checker of outputs, or an interactor that talks to the solution.

It runs in a sandbox in which no code of the agent ever runs, so it may know the answers. Exit codes are those of testlib: 0 for
a right answer, 1, 2, 4 and 8 for a wrong one. Every other end is a failure of the judge. Since an output of the agent may be
made to crash a judge, the judge then gets control questions, which no agent has made. If it answers one, the output is the
cause, and wrong. If it fails at the reference's output, at every output in the same way, or at the task's own outputs as at the
agent's but differently at an empty one, the task is wrong.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollyard.core.errors import NodeFault, TaskError
from rollyard.kinds.code_task import CodeCase, CodeTask, JudgeProgram
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import AnotherSandbox, Evaluation
from rollyard.tasks.code.languages import BUILD, Commands, commands_of
from rollyard.tasks.code.program_cases import JudgedRun, check_start, compile_source, data_bytes, solution_start
from rollyard.tasks.code.program_runs import (
    ProgramRun,
    ProgramRunner,
    ProgramStart,
    RunLimits,
    limits_of,
    program_runner,
)
from rollyard.tasks.task_files import write_files

FOLDER = "/workspace/judge"
COMPILE_SECONDS = 120.0
RIGHT, WRONG = (0,), (1, 2, 4, 8)
_ENDINGS = {"python": "py", "javascript": "js", "rust": "rs"}
_CALL_CHECK = """\
import os, sys, traceback
code = 5
path = os.path.join(os.path.dirname(__file__), "check.py")
texts = [open(text, encoding="utf-8", errors="replace", newline="").read() for text in sys.argv[1:4]]
try:
    defined = {"__name__": "check"}
    exec(compile(open(path, encoding="utf-8").read(), path, "exec"), defined)
    code = 3
    sys.exit(0 if defined["check"](*texts) else 1)
except Exception:
    traceback.print_exc()
    sys.exit(code)
"""
"""Program that calls the function of a checker in Python."""
_MOST_SAID = 300
_MOST_CONTROLS = 4
_TRIVIAL_OUTPUTS = ("", "0\n", "1 1\n", "1 2 3\n", "1\n1\n", "yes\n", "[]\n", "? 1\n! 1\n")
"""Outputs of usual forms. A judge that reads its output fails at them in several ways, if it does not judge one of them."""
_CHANGES = re.compile(r"0x[0-9a-f]+|==\d+==")
"""Parts of an error's text that differ from run to run."""
_REFERENCE_BUILD = f"{FOLDER}/reference-build"


class TaskJudge:
    """One judge, ready to run."""

    def __init__(
        self, code: CodeTask, program: JudgeProgram, runner: ProgramRunner, sandbox: Sandbox, commands: Commands,
        another: AnotherSandbox, deadline: float,
    ) -> None:  # fmt: skip
        self._code = code
        self._program = program
        self._runner = runner
        self._sandbox = sandbox
        self._commands = commands
        self._another = another
        self._deadline = deadline
        self._works = False
        """Whether it has given a verdict on anything."""

    async def check(self, runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> JudgedRun:
        """Run the solution, and let the judge see what it printed."""
        run = await runner.run(start, (case.input or "").encode("utf-8", "surrogatepass"))
        if not run.ended_well:
            return JudgedRun(run, str(run))
        judged = await self._run(case, run.output)
        if _has_failed(judged) and not self._works:
            await self._control_check(case, judged)
        return JudgedRun(run, _why(judged))

    async def interact(self, runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> JudgedRun:
        """Run the solution and the judge, each with the other's output as its input."""
        run, judged = await self._talk(runner, start, case)
        if judged.exit_code in WRONG:
            return JudgedRun(run, f"{_why(judged)}{'' if run.ended_well else f'; {run}'}")
        if _has_failed(judged) and not self._works:
            await self._control_dialogue(case, judged)
        return JudgedRun(run, _why(judged) if run.ended_well else str(run))

    async def _talk(self, runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> tuple[ProgramRun, ProgramRun]:
        await self._write_case(case, b"")
        latest = start.limits.latest_seconds
        own = self._start(RunLimits(self._program.seconds, latest, latest))  # it waits as long as the solution computes
        await runner.begin(start, talks=True)
        await self._runner.begin(own, talks=True)
        run, judged = await asyncio.gather(_side(runner, start, self._runner), _side(self._runner, own, runner))
        self._works = self._works or not _has_failed(judged)
        return run, judged

    async def _control_check(self, case: CodeCase, failed: ProgramRun) -> None:
        """Ask about outputs that no agent has made, until the judge gives a verdict. Raises TaskError if the judge is wrong."""
        others = [other for other in self._code.cases if other is not case]
        controls = [other for other in (case, *others) if other.output][:_MOST_CONTROLS]
        found = []
        for control in controls:
            if not self._works:
                found.append(await self._run(control, control.output.encode("utf-8", "surrogatepass")))
        printed = None if self._works else await self._reference_output(case)
        if printed is not None and _has_failed(await self._run(case, printed)):
            await self._refuse(failed)
        if not self._works and all(_failure(one) == _failure(failed) for one in found):
            await self._trivial_check(case, failed, own=bool(found))

    async def _control_dialogue(self, case: CodeCase, failed: ProgramRun) -> None:
        """Let the judge talk to the reference, or to nobody. Raises TaskError if the judge is wrong."""
        if self._code.reference is not None:
            async with self._another() as sandbox, program_runner(sandbox) as other:
                if (reference := await self._reference(other, sandbox)) is not None:
                    run, judged = await self._talk(other, reference, case)
                    if _has_failed(judged) and run.limit is None:
                        await self._refuse(failed)
        await self._trivial_check(case, failed)

    async def _trivial_check(self, case: CodeCase, failed: ProgramRun, *, own: bool = False) -> None:
        """Raise TaskError if the judge fails at every trivial output as it did at the agent's, so not because of the output.
        `own`: it failed so at the task's own outputs too. Then it is wrong also if it fails differently at an empty output."""
        for text in (*_TRIVIAL_OUTPUTS, case.input or ""):
            if time.monotonic() >= self._deadline:
                return
            judged = await self._run(case, text.encode("utf-8", "surrogatepass"))
            if _failure(judged) != _failure(failed):
                if own and not text:
                    break
                return
        await self._refuse(failed)

    async def _reference_output(self, case: CodeCase) -> bytes | None:
        """Return what the reference prints; None without one that runs. It runs beside the judge, without agents' code."""
        if (start := await self._reference(self._runner, self._sandbox)) is None:
            return None
        run = await self._runner.run(start, (case.input or "").encode("utf-8", "surrogatepass"))
        return run.output if run.ended_well else None

    async def _reference(self, runner: ProgramRunner, sandbox: Sandbox) -> ProgramStart | None:
        """Return how the reference starts in this sandbox; None without one that compiles."""
        code = self._code
        if code.reference is None:
            return None
        files = {
            **code.files,
            code.solution: code.reference,
            f"{_REFERENCE_BUILD}/.reference": "",
            f"{BUILD}/.judge": "",
        }
        await write_files(sandbox, files)
        commands = commands_of(code, code.solution, data_bytes(sandbox, code.case_memory), _REFERENCE_BUILD)
        if await compile_source(runner, code, commands, code.compile_seconds, self._deadline) is not None:
            return None
        return solution_start(code, commands, self._deadline - time.monotonic())

    async def _refuse(self, failed: ProgramRun) -> None:
        if await self._sandbox.was_hurt():
            raise NodeFault(f"while the judge ran: {self._sandbox.node_fault or 'files of the sandbox were lost'}")
        raise TaskError(
            f"the task's judge gives no verdict: {failed}; it must exit with 0, or 1 for a wrong answer. If it fails at "
            "wrong answers alone, give a checker's case an `output` that it can judge, or the task a `reference`"
        )

    async def _run(self, case: CodeCase, output: bytes) -> ProgramRun:
        await self._write_case(case, output)
        limits = limits_of(self._program.seconds, 4 * self._program.seconds + 30.0)
        judged = await self._runner.run(self._start(limits), output)
        self._works = self._works or not _has_failed(judged)
        return judged

    async def _write_case(self, case: CodeCase, output: bytes) -> None:
        texts = {"input": case.input or "", "answer": case.output}
        files = {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()} | {"output": output}
        for name, data in files.items():
            try:
                await self._sandbox.write_file(f"{FOLDER}/case/{name}", data)
            except OSError as error:
                raise TaskError(f"the files of a case do not fit into the judge's sandbox: {error}") from error

    def _start(self, limits: RunLimits) -> ProgramStart:
        names = [f"{FOLDER}/case/{name}" for name in ("input", "output", "answer")]
        run = (
            ["bash", "-c", f'{self._program.run} "$@"', "judge"]
            if self._program.run is not None
            else self._commands.run
        )
        return ProgramStart([*run, *names], self._commands.environment, FOLDER, limits)


@asynccontextmanager
async def task_judge(
    code: CodeTask, program: JudgeProgram, evaluation: Evaluation, deadline: float
) -> AsyncIterator[TaskJudge]:
    """Start a sandbox with the judge in it. A checker in Python has a function `check`, and is no program. Raises TaskError if
    the judge does not compile."""
    assert evaluation.another is not None
    source = f"{FOLDER}/Judge.{_ENDINGS.get(program.language or '', program.language or 'txt')}"
    files = {f"{FOLDER}/{name}": content for name, content in program.files.items()} | {source: program.source}
    if program is code.checker and program.language == "python":
        files |= {f"{FOLDER}/check.py": program.source, source: _CALL_CHECK}
    async with evaluation.another() as sandbox:
        commands = commands_of(program, source, data_bytes(sandbox))
        await write_files(sandbox, {**files, f"{BUILD}/.judge": ""})
        async with program_runner(sandbox) as runner:
            if why := await compile_source(runner, program, commands, COMPILE_SECONDS, deadline):
                raise TaskError(f"the task's judge does not compile: {why}")
            yield TaskJudge(code, program, runner, sandbox, commands, evaluation.another, deadline)


async def _side(runner: ProgramRunner, start: ProgramStart, other: ProgramRunner) -> ProgramRun:
    """Pass on to the other side what this one prints, until it ends."""
    run = await runner.until_end(start, other.write)
    check_start(run, start.argv[0], False)
    await other.end_input()
    return run


def _has_failed(judged: ProgramRun) -> bool:
    return judged.limit is not None or judged.exit_code not in (*RIGHT, *WRONG)


def _failure(judged: ProgramRun) -> tuple[object, ...]:
    return judged.exit_code, judged.limit, _CHANGES.sub("", judged.errors)


def _why(judged: ProgramRun) -> str | None:
    if judged.exit_code in RIGHT and judged.limit is None:
        return None
    if _has_failed(judged):
        return f"wrong answer: the judge cannot read it: {judged}"
    said = (judged.errors or judged.output.decode("utf-8", "replace")).strip().partition("\n")[0][:_MOST_SAID]
    return f"wrong answer{': ' + said if said else ''}"
