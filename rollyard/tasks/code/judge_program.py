"""A task's own judge: a checker of outputs, or an interactor that talks to the solution.

It runs in a sandbox in which no code of the agent ever runs, so it may know the answers. Exit codes are those of testlib: 0 for
a right answer, 1, 2, 4 and 8 for a wrong one. Every other end is a failure of the judge. Since an output of the agent may be
made to crash a judge, the judge then gets a control question; if it answers that one, the output is the cause, and wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollyard.core.errors import NodeFault, TaskError
from rollyard.kinds.code_task import CodeCase, JudgeProgram
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Evaluation
from rollyard.tasks.code.languages import BUILD, Commands, commands_of
from rollyard.tasks.code.program_cases import JudgedRun, check_start, compile_source, data_bytes
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
_UNUSABLE = 5
"""Its exit code if there is no such function."""
_MOST_SAID = 300


class TaskJudge:
    """One judge, ready to run."""

    def __init__(self, program: JudgeProgram, runner: ProgramRunner, sandbox: Sandbox, commands: Commands) -> None:
        self._program = program
        self._runner = runner
        self._sandbox = sandbox
        self._commands = commands
        self._works = False

    async def check(self, runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> JudgedRun:
        """Run the solution, and let the judge see what it printed."""
        run = await runner.run(start, (case.input or "").encode("utf-8", "surrogatepass"))
        if not run.ended_well:
            return JudgedRun(run, str(run))
        judged = await self._run(case, run.output)
        if _has_failed(judged) and (
            case.output or judged.exit_code == _UNUSABLE
        ):  # else there is nothing harmless to ask
            await self._control(case, case.output.encode("utf-8", "surrogatepass"), judged)
        return JudgedRun(run, _why(judged))

    async def interact(self, runner: ProgramRunner, start: ProgramStart, case: CodeCase) -> JudgedRun:
        """Run the solution and the judge, each with the other's output as its input."""
        await self._write_case(case, b"")
        latest = start.limits.latest_seconds
        own = self._start(RunLimits(self._program.seconds, latest, latest))  # it waits as long as the solution computes
        await runner.begin(start, talks=True)
        await self._runner.begin(own, talks=True)
        run, judged = await asyncio.gather(_side(runner, start, self._runner), _side(self._runner, own, runner))
        if judged.exit_code in WRONG:
            return JudgedRun(run, f"{_why(judged)}{'' if run.ended_well else f'; {run}'}")
        if not run.ended_well:
            return JudgedRun(run, str(run))
        if _has_failed(judged):
            await self._control(case, b"", judged)
        return JudgedRun(run, _why(judged))

    async def _control(self, case: CodeCase, output: bytes, failed: ProgramRun) -> None:
        """Raise TaskError if the judge fails at a harmless output too."""
        if self._works:
            return
        judged = await self._run(case, output)
        if await self._sandbox.was_hurt():
            raise NodeFault(f"while the judge ran: {self._sandbox.node_fault or 'files of the sandbox were lost'}")
        if _has_failed(judged):
            raise TaskError(
                f"the task's judge gives no verdict: {failed}; it must exit with 0, or 1 for a wrong answer"
            )
        self._works = True

    async def _run(self, case: CodeCase, output: bytes) -> ProgramRun:
        await self._write_case(case, output)
        return await self._runner.run(
            self._start(limits_of(self._program.seconds, 4 * self._program.seconds + 30.0)), output
        )

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
    program: JudgeProgram, evaluation: Evaluation, deadline: float, *, calls_check: bool
) -> AsyncIterator[TaskJudge]:
    """Start a sandbox with the judge in it. `calls_check`: a Python source has a function `check`, and is no program. Raises
    TaskError if the judge does not compile."""
    assert evaluation.another is not None
    source = f"{FOLDER}/Judge.{_ENDINGS.get(program.language or '', program.language or 'txt')}"
    files = {f"{FOLDER}/{name}": content for name, content in program.files.items()} | {source: program.source}
    if calls_check and program.language == "python":
        files |= {f"{FOLDER}/check.py": program.source, source: _CALL_CHECK}
    async with evaluation.another() as sandbox:
        commands = commands_of(program, source, data_bytes(sandbox))
        await write_files(sandbox, {**files, f"{BUILD}/.judge": ""})
        async with program_runner(sandbox) as runner:
            if why := await compile_source(runner, program, commands, COMPILE_SECONDS, deadline):
                raise TaskError(f"the task's judge does not compile: {why}")
            yield TaskJudge(program, runner, sandbox, commands)


async def _side(runner: ProgramRunner, start: ProgramStart, other: ProgramRunner) -> ProgramRun:
    """Pass on to the other side what this one prints, until it ends."""
    run = await runner.until_end(start, other.write)
    check_start(run, start.argv[0], False)
    await other.end_input()
    return run


def _has_failed(judged: ProgramRun) -> bool:
    return judged.limit is not None or judged.exit_code not in (*RIGHT, *WRONG)


def _why(judged: ProgramRun) -> str | None:
    if judged.exit_code in RIGHT and judged.limit is None:
        return None
    if _has_failed(judged):
        return f"wrong answer: the judge cannot read it: {judged}"
    said = (judged.errors or judged.output.decode("utf-8", "replace")).strip().partition("\n")[0][:_MOST_SAID]
    return f"wrong answer{': ' + said if said else ''}"
