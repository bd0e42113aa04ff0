"""Handler of the task kind `swe`.

The agent's sandbox gives nothing but a snapshot of the repository's folder. The score comes from fresh sandboxes of the same
image, in which the tests are put in place and the files of the agent that count are laid over the image's.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from rollyard.core.errors import StageTimeout, TaskError, TooLarge
from rollyard.kinds.rollout import MAX_ARTIFACT_BYTES, MAX_NOTES_CHARS
from rollyard.kinds.swe_task import SweTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from rollyard.tasks.swe import counted_paths, repository
from rollyard.tasks.swe.control_tests import SHORT_REPORTS, may_forge
from rollyard.tasks.swe.early_run import EarlyRun, core_is_idle
from rollyard.tasks.swe.eval_time import EvalTime, RunTime
from rollyard.tasks.swe.history_scrub import scrub
from rollyard.tasks.swe.log_parsers.parser_choice import parse_log
from rollyard.tasks.swe.log_results import ABSENT
from rollyard.tasks.swe.output_marks import tells_start
from rollyard.tasks.swe.parser_script import run_parser
from rollyard.tasks.swe.suspicion import marks
from rollyard.tasks.swe.test_run import RunLog, run_script
from rollyard.tasks.swe.tree_difference import TreeDifference
from rollyard.tasks.swe.verdict import GOOD, RunStatuses, judge, tests_of
from rollyard.tasks.swe.working_tree import MOST_BYTES, WorkingTree, part_of, read_tree
from rollyard.trajectory import Artifact

TREE, REFUSED, LEFT_OUT = "tree", "refused", "left_out"
"""Parts of the artifact: the snapshot, or the reason why there is none; files that are too large, or no files."""
MAX_TREE_BYTES = MAX_ARTIFACT_BYTES - (64 << 10)
MAX_LOG_CHARS = 800
"""Length of the end of the log in the notes."""
_LOG = "the log of the tests"
_SHARE = ", their share of EVAL's time; EVAL needs 4.5 times as long as the tests"


@dataclass(frozen=True)
class _TestsRun:
    """One run of the tests."""

    statuses: RunStatuses
    log: RunLog
    seconds: float
    """Time that the script had."""
    found: TreeDifference
    """The agent's work."""
    controls: Collection[str] | None = None
    """Control tests among the task's tests; None: the script did not come to its tests, or they are the tests themselves."""

    def cut_by_share(self, swe: SweTask) -> bool:
        """Whether its share of EVAL's time ended the run, and not the task's own limit."""
        return self.log.timed_out and self.seconds < swe.seconds

    def passed_controls(self, swe: SweTask) -> set[str]:
        tests = zip(tests_of(swe), self.statuses.letters, strict=True)
        return {test for test, letter in tests if test in (self.controls or ()) and letter in GOOD}


class SweHandler:
    eval_needs_sandbox = True

    def __init__(self, idle: Callable[[], bool] = core_is_idle) -> None:
        """`idle`: whether control tests may run at the same time as the tests."""
        self._idle = idle
        harmless = (json.dumps({"tests": ["a"], "parser": None}).encode(), b"{}")
        self._parsers = CheckerPool("rollyard.tasks.swe.log_results", harmless)
        self._references: dict[str, bool] = {}
        """Image and task -> whether the tests run with the task's own reference."""
        self._in_time = set[str]()
        """Images and tasks whose tests end with the task's own reference in their share of EVAL's time."""
        self._controls: dict[str, set[str]] = {}
        """Image and task -> control tests that pass without an agent, so that they show nothing."""
        self._checking: dict[str, asyncio.Lock] = {}

    async def close(self) -> None:
        await self._parsers.close()

    def tools(self, task: Task) -> list[str]:
        _read(task)
        return ["bash", "editor"]

    def prompt(self, task: Task) -> list[Message]:
        swe = _read(task)
        system = swe.system if swe.system is not None else system_prompts.SWE.format(repository=swe.repository)
        return [{"role": "system", "content": system}, {"role": "user", "content": swe.statement}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        swe = _read(task)
        await scrub(sandbox, await repository.prepare(sandbox, swe), [swe.relative(path) for path in swe.hidden])

    async def solve(self, task: Task, sandbox: Sandbox) -> None:
        swe = _read(task)
        if swe.reference_patch is None:
            raise TaskError("the task has no reference solution: set `reference_patch`")
        await repository.apply_patch(sandbox, swe, swe.reference_patch, "reference_patch")

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        swe = _read(task)
        names, endings = counted_paths.closed_names(swe), counted_paths.product_endings(swe)
        part = part_of(swe.repository, names, endings, counted_paths.MARKS)
        try:
            with await sandbox.snapshot(MOST_BYTES, most_compressed=MAX_TREE_BYTES, part=part) as snapshot:
                left_out = {LEFT_OUT: ", ".join(snapshot.left_out)} if snapshot.left_out else {}
                return {TREE: await asyncio.to_thread(snapshot.read), **left_out}
        except TooLarge:
            limits = f"{MOST_BYTES >> 20} MiB, or {MAX_TREE_BYTES} bytes when they are compressed"
            return {REFUSED: f"the files that the agent changed in {swe.repository} have more than {limits}"}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        swe, artifact = _read(task), evaluation.artifact
        clock = EvalTime(evaluation.seconds, swe.seconds)
        if REFUSED in artifact:
            return Score(0.0, {"refused": 1.0}, [str(artifact[REFUSED])])
        snapshot = artifact[TREE]
        assert isinstance(snapshot, bytes)
        tree = await asyncio.to_thread(read_tree, snapshot)
        if tree.gone:
            return Score(0.0, {"repository_gone": 1.0}, [f"the agent left no folder {swe.repository}"])
        async with EarlyRun[_TestsRun]() as early:
            return await self._score(swe, evaluation, clock, tree, early)

    async def _score(
        self, swe: SweTask, evaluation: Evaluation, clock: EvalTime, tree: WorkingTree, early: EarlyRun[_TestsRun]
    ) -> Score:
        """`early`: run of the control tests, if it begins before the tests have ended."""

        def begin_early(found: TreeDifference) -> None:
            # one sandbox beside the evaluation's at a time: other runs and parsers have sandboxes too
            alone = swe.repeats == 1 and swe.parser_script is None and counted_paths.python_tests(swe)
            if alone and may_forge(found) and self._idle():
                early.begin(self._run(swe, evaluation, clock.beside_tests(), tree, controls=True))

        runs: list[RunStatuses] = []
        while len(runs) < swe.repeats and not (runs and swe.verdict == "all" and not judge(swe, runs).resolved):
            limit = clock.tests(swe.repeats - len(runs))
            run = await self._run(swe, evaluation, limit, tree, first=not runs, laid_over=begin_early)
            runs.append(run.statuses)
        verdict = judge(swe, runs)
        if not verdict.resolved:
            await early.end()
        if not verdict.resolved and run.cut_by_share(swe) and not await self._is_in_time(swe, evaluation, clock, run):
            raise TaskError(
                f"the tests do not end within {run.seconds:.4g} s with the task's own reference either{_SHARE}: raise "
                "`stages.eval.timeoutSeconds` of the pool, or `evaluator.seconds` of the task"
            )
        if not verdict.ran and not await self._reference_runs(swe, evaluation, clock):
            raise TaskError(
                "the tests do not run with the task's own reference either, so there is no verdict"
                + _log_end(run.log, MAX_LOG_CHARS, "; with the agent's work the log")
            )
        seen = marks(swe, run.found, verdict, evaluation.turns)
        if verdict.resolved and may_forge(run.found):
            seen |= await self._control_marks(swe, tree, run.found, evaluation, clock, early)
        resolved = verdict.resolved and "forged" not in seen
        notes = [*seen.values(), *verdict.notes]
        if run.log.timed_out:
            share = _SHARE if run.cut_by_share(swe) else ""
            notes.insert(0, f"the tests took more than {run.seconds:.4g} s{share}")
        if LEFT_OUT in evaluation.artifact:
            notes.append(f"left out, because they are too large or no files: {evaluation.artifact[LEFT_OUT]!s}")
        room = min(MAX_LOG_CHARS, MAX_NOTES_CHARS - sum(map(len, notes)) - 2 * len(_LOG))
        if not resolved and (end := _log_end(run.log, room, _LOG)):
            notes.append(end)
        metrics = {
            "passed": verdict.passed, "tests": len(tests_of(swe)), "runs": len(runs), "timed_out": run.log.timed_out,
            "changed_files": len(run.found.written) + len(run.found.deleted), "suspicious": resolved and bool(seen),
            **dict.fromkeys(seen, 1.0), **({} if counted_paths.python_tests(swe) else {"no_control_tests": 1.0}),
        }  # fmt: skip
        reward = float(resolved)
        return Score(reward, {name: float(value) for name, value in metrics.items()}, notes or ["every test passed"])

    async def _run(
        self,
        swe: SweTask,
        evaluation: Evaluation,
        limit: RunTime,
        tree: WorkingTree | None,
        *,
        first: bool = False,
        controls: bool = False,
        laid_over: Callable[[TreeDifference], None] | None = None,
    ) -> _TestsRun:
        """Run the tests, or their control tests, in a fresh sandbox. `tree`: the agent's work; None: the task's reference, or
        the image without a change if the task has none. `laid_over`: called before the script starts."""
        found = TreeDifference()
        changed: set[str] | None = None
        async with _fresh(evaluation, first=first) as sandbox:
            path = await repository.prepare(sandbox, swe)
            await repository.put_tests(sandbox, swe)
            files = await repository.list_python_tests(sandbox, swe) if controls else []

            async def put_controls() -> None:
                nonlocal changed
                changed = await repository.put_controls(sandbox, swe, files)

            # a script that puts tests in place has to do so first
            before_tests = put_controls if files and tells_start(swe.script) else None
            if controls and before_tests is None:
                await put_controls()
                if not changed:
                    return _TestsRun(RunStatuses(ABSENT * len(tests_of(swe)), 0), RunLog(b""), 0.0, found, set())
            if tree is not None:
                found = await repository.lay_over(sandbox, swe, path, tree)
            elif swe.reference_patch is not None:
                await repository.apply_patch(sandbox, swe, swe.reference_patch, "reference_patch")
            if laid_over is not None:
                laid_over(found)
            seconds, script = limit.left(), f"{SHORT_REPORTS}{swe.script}" if controls else swe.script
            log = await run_script(
                sandbox, path, script, seconds, apart=swe.log_parser is None, before_tests=before_tests
            )
        return _TestsRun(await self._statuses(swe, log, evaluation), log, seconds, found, changed)

    async def _statuses(self, swe: SweTask, log: RunLog, evaluation: Evaluation) -> RunStatuses:
        """Return the statuses of the task's tests in a log. A log that cannot be read within the limits has none."""
        output = log.output
        if swe.parser_script is not None:
            async with _fresh(evaluation, first=False) as sandbox:
                output = await run_parser(sandbox, swe.parser_script, log)
        job = json.dumps({"tests": tests_of(swe), "parser": swe.log_parser}).encode()
        try:
            answer = await self._parsers.ask(job, output)
        except CheckerKilled:
            answer = {}
        return RunStatuses(
            answer.get("letters", ABSENT * len(tests_of(swe))), answer.get("others", 0), answer.get("similar", {})
        )

    async def _control_marks(
        self,
        swe: SweTask,
        work: WorkingTree,
        found: TreeDifference,
        evaluation: Evaluation,
        clock: EvalTime,
        early: EarlyRun[_TestsRun],
    ) -> dict[str, str]:
        """Run the control tests, and return metric -> sentence for each mark: control tests pass with the agent's work and not
        without it, or there is nothing to compare with."""
        none = {"may_forge": "the agent's code can act on the tests, and there are no control tests"}
        none = none if may_forge(found, surely=True) else {}
        if not counted_paths.python_tests(swe):
            return none
        if early.begun:
            run = await early.result()
        else:
            run = await self._run(swe, evaluation, clock.control(2), work, controls=True)
        if run.controls is None:
            return {"may_forge": "the script did not come to the tests when these were control tests"}
        if not run.controls:
            return none
        passed = run.passed_controls(swe)
        if passed:
            passed -= await self._passed_without_agent(swe, evaluation, clock)
        # without a reference, a test that fails in the image shows nothing
        forged = passed if swe.reference_patch is not None else passed.intersection(swe.pass_to_pass)
        if forged:
            return {"forged": f"tests pass although they cannot, so their results are forged: {_named(forged)}"}
        if passed:
            return {"may_forge": f"tests pass although they should not, and no reference shows why: {_named(passed)}"}
        return {}

    async def _passed_without_agent(self, swe: SweTask, evaluation: Evaluation, clock: EvalTime) -> set[str]:
        key = _key(swe, evaluation)
        if key not in self._controls:
            run = await self._run(swe, evaluation, clock.control(1), None, controls=True)
            self._controls[key] = run.passed_controls(swe)
        return self._controls[key]

    async def _is_in_time(self, swe: SweTask, evaluation: Evaluation, clock: EvalTime, work: _TestsRun) -> bool:
        """Return whether the tests end with the task's reference, or without any change if it has none, in the time that they
        had with the agent's work. If they do, it is found out once for an image and a task."""
        key = _key(swe, evaluation)
        async with self._checking.setdefault(key, asyncio.Lock()):
            if key not in self._in_time:
                run = await self._run(swe, evaluation, clock.control(1, most=work.seconds), None)
                if run.log.timed_out:
                    return False
                self._in_time.add(key)
            return True

    async def _reference_runs(self, swe: SweTask, evaluation: Evaluation, clock: EvalTime) -> bool:
        """Return whether the tests run with the task's reference, or without any change if it has none. It is found out once
        for an image and a task. Raises StageTimeout."""
        key = _key(swe, evaluation)
        async with self._checking.setdefault(key, asyncio.Lock()):
            if key not in self._references:
                run = await self._run(swe, evaluation, clock.control(1), None)
                if not run.statuses.ran and run.log.timed_out and run.seconds < swe.seconds:
                    raise StageTimeout(
                        "EVAL has too little time to find out whether the tests run with the task's reference"
                    )
                self._references[key] = run.statuses.ran
            return self._references[key]


def _read(task: Task) -> SweTask:
    """Raises UnknownParser."""
    swe = task.fields_as(SweTask)
    if swe.log_parser is not None:
        parse_log(swe.log_parser, "")
    return swe


def _log_end(log: RunLog, most: int, subject: str) -> str:
    """Return a sentence with the end of a log; nothing if there is no log or no room."""
    end = log.end(most)
    return f"{subject} ends with: {end}" if end else ""


def _named(tests: Collection[str]) -> str:
    return ", ".join(sorted(tests))[:400]


def _key(swe: SweTask, evaluation: Evaluation) -> str:
    """Return a name of the image and the task."""
    assert evaluation.sandbox is not None
    task = f"{evaluation.sandbox.image.fingerprint}\n{swe.model_dump_json()}"
    return hashlib.sha256(task.encode("utf-8", "surrogatepass")).hexdigest()


@contextlib.asynccontextmanager
async def _fresh(evaluation: Evaluation, *, first: bool) -> AsyncIterator[Sandbox]:
    """Give the sandbox of the evaluation for the first run, and another one for each further run."""
    assert evaluation.sandbox is not None
    assert evaluation.another is not None
    if first:
        yield evaluation.sandbox
        return
    async with evaluation.another() as sandbox:
        yield sandbox
