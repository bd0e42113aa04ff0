"""Handler of the task kind `harbor`.

A verifier runs in one of three places. By default it is a fresh sandbox of the image with the files that the agent has
changed, and that count: no process of the agent is there, and nothing that it wrote about its reward. A separate verifier has
an image of its own and gets the artifacts. A shared one runs in the agent's sandbox, and EVAL only reads its results.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from rollyard.core.errors import StageTimeout, TaskError
from rollyard.kinds.harbor_config import HarborStep
from rollyard.kinds.harbor_task import LOOSE, HarborTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import RestoreRules
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.harbor.artifacts import REFUSED, put_artifacts, run_hooks, take_artifacts
from rollyard.tasks.harbor.counted_changes import RULES
from rollyard.tasks.harbor.healthcheck import wait_until_healthy
from rollyard.tasks.harbor.reward_files import Rewards, reward_of
from rollyard.tasks.harbor.shared_verifier import SharedSteps, StepsEnvironment
from rollyard.tasks.harbor.start_hooks import start_hooks, without_hooks
from rollyard.tasks.harbor.step_rewards import from_text, of_steps, to_text
from rollyard.tasks.harbor.verifier_run import AGENT_LOGS, Verified, make_folders, put_folder, run_verifier, shell
from rollyard.tasks.own_tools import McpServer, OfferedTool
from rollyard.trajectory import Artifact

STEPS = "steps"
"""Part of the artifact of a shared verifier: the results of the steps."""
SOLVE_ENV = {"DEBIAN_FRONTEND": "noninteractive"}
MOST_SECONDS = 86_400.0
"""Time of a solution whose task names none; RUN has a limit too."""


class HarborHandler:
    eval_needs_sandbox = True

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[Sandbox, SharedSteps] = WeakKeyDictionary()
        self._sound: dict[str, bool] = {}
        """Image and task -> whether the verifier gives a reward to the task's own solution."""
        self._checking: dict[str, asyncio.Lock] = {}

    def tools(self, task: Task) -> list[OfferedTool]:
        servers = _read(task).config.environment.mcp_servers
        return ["bash", "editor", *(McpServer([server.command or "", *server.args]) for server in servers)]

    def prompt(self, task: Task) -> list[Message]:
        harbor = _read(task)
        system = system_prompts.HARBOR if harbor.system is None else harbor.system
        if harbor.config.environment.skills_dir is not None:
            system += " " + system_prompts.SKILLS.format(folder=harbor.config.environment.skills_dir)
        opening = [{"role": "system", "content": system}]
        if harbor.config.steps:  # their environment opens with the first instruction
            return opening
        return [*opening, {"role": "user", "content": harbor.instruction()}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        harbor = _read(task)
        await _prepare(harbor, sandbox)
        if harbor.is_shared:
            self._steps[sandbox] = SharedSteps(harbor, sandbox)
            await self._steps[sandbox].begin()

    async def environment(self, task: Task, sandbox: Sandbox) -> StepsEnvironment | None:
        harbor = _read(task)
        return StepsEnvironment(harbor, self._steps[sandbox]) if harbor.config.steps else None

    async def solve(self, task: Task, sandbox: Sandbox) -> None:
        harbor = _read(task)
        if any(harbor.solution(step) is None for step in harbor.steps):
            raise TaskError("the task has no reference solution: its folder has no solution/solve.sh")
        await _solve(harbor, sandbox, self._steps.get(sandbox))

    def eval_from_snapshot(self, task: Task) -> bool:
        harbor = _read(task)
        return not harbor.is_shared and not harbor.is_separate

    def restore_rules(self, task: Task) -> RestoreRules:
        return RULES

    def collect_seconds(self, task: Task) -> float:
        harbor = _read(task)
        hooks = sum(hook.timeout_sec for hook in harbor.config.verifier.collect)
        if not harbor.is_shared:
            return hooks
        verifiers = [step.verifier for step in harbor.config.steps] or [harbor.config.verifier]
        return hooks * len(verifiers) + sum(verifier.timeout_sec for verifier in verifiers)

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        harbor = _read(task)
        if harbor.is_shared:
            steps = self._steps.get(sandbox) or SharedSteps(harbor, sandbox)  # a fork has no INIT of its own
            await steps.finish()
            return {STEPS: to_text(steps.results)}
        if harbor.is_separate:
            await run_hooks(sandbox, harbor.config.verifier.collect)
            return await take_artifacts(sandbox, harbor.config.artifacts)
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        harbor, start = _read(task), time.monotonic()
        assert evaluation.sandbox is not None
        if REFUSED in evaluation.artifact:
            return Score(0.0, {"refused": 1.0}, [str(evaluation.artifact[REFUSED])])
        if harbor.is_shared:
            results = from_text(str(evaluation.artifact[STEPS]))
            missing = next((result for result in results if result.rewards is None), None)
            found = Verified(of_steps(results, harbor.config.multi_step_reward_strategy))
            if missing is None:
                return _score(harbor, found.rewards, found)
            found = Verified(found.rewards, f"{missing.name}: {missing.why}" if missing.name else missing.why)
        else:
            hooks = await start_hooks(evaluation.sandbox)
            found = await _verified(harbor, evaluation.sandbox, evaluation.artifact, evaluation.seconds)
            if found.rewards is not None:
                left = evaluation.seconds - (time.monotonic() - start)
                needs = hooks and await _needs_hooks(harbor, evaluation, hooks, found.rewards, left)
                return _score(harbor, found.rewards, found, hooks if needs else ())
        left = evaluation.seconds - (time.monotonic() - start)
        if not await self._is_sound(harbor, evaluation, left):
            raise TaskError(f"{found.why}, and with the task's own solution it gives no reward either{_printed(found)}")
        score = _score(harbor, found.rewards or {harbor.reward_key: 0.0}, found)
        notes = [f"{found.why}, and with the task's own solution it gives a reward", *score.notes]
        return Score(score.reward, {"verifier_failed": 1.0, "timed_out": float(found.timed_out)}, notes, score.parts)

    async def _is_sound(self, harbor: HarborTask, evaluation: Evaluation, seconds: float) -> bool:
        """Return whether the verifier gives a reward to the reference solution, or to nothing if the task has none, without
        files of the agent. It is found out once for an image and a task. Raises StageTimeout."""
        assert evaluation.sandbox is not None
        text = f"{evaluation.sandbox.image.fingerprint}\n{harbor.model_dump_json()}"
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        async with self._checking.setdefault(key, asyncio.Lock()):
            if key not in self._sound:
                try:
                    async with asyncio.timeout(max(seconds, 0.0)):
                        self._sound[key] = await _gives_a_reward(harbor, evaluation, seconds)
                except TimeoutError:
                    raise StageTimeout(
                        "EVAL has too little time to find out whether the verifier works with the task's own solution: raise "
                        "the pool's `stages.eval.timeoutSeconds`"
                    ) from None
            return self._sound[key]


async def _verified(harbor: HarborTask, sandbox: Sandbox, artifact: Artifact, seconds: float) -> Verified:
    """Run the verifier in a sandbox of EVAL. Raises StageTimeout if EVAL has less time than the task gives to it."""
    notes: list[str] = []
    if harbor.is_separate:
        if not harbor.is_bundled:
            await put_folder(sandbox, harbor, LOOSE, sandbox.workdir)
        notes = await put_artifacts(sandbox, artifact, harbor.config.artifacts)
    else:
        await run_hooks(sandbox, harbor.config.verifier.collect)
    wanted = harbor.config.verifier.timeout_sec
    found = await run_verifier(sandbox, harbor, min(wanted, seconds))
    if found.timed_out and seconds < wanted:
        raise StageTimeout(
            f"the verifier may take {wanted:g} s, and EVAL has {seconds:g} s for it: raise the pool's "
            "`stages.eval.timeoutSeconds`"
        )
    return replace(found, notes=(*notes, *found.notes))


async def _gives_a_reward(harbor: HarborTask, evaluation: Evaluation, seconds: float) -> bool:
    """Return whether the verifier gives a reward without the agent. A separate one gets no artifact, because its sandbox is no
    place for the solution."""
    assert evaluation.another is not None
    async with evaluation.another(files=False) as sandbox:
        if harbor.is_separate:
            return (await _verified(harbor, sandbox, {}, MOST_SECONDS)).rewards is not None
        await _prepare(harbor, sandbox)
        steps = SharedSteps(harbor, sandbox)
        await steps.begin()
        if all(harbor.solution(step) is not None for step in harbor.steps):
            await _solve(harbor, sandbox, steps)
        await steps.finish()
        return all(result.rewards is not None for result in steps.results)


async def _prepare(harbor: HarborTask, sandbox: Sandbox) -> None:
    await make_folders(sandbox)
    await put_folder(sandbox, harbor, LOOSE, sandbox.workdir)
    await wait_until_healthy(sandbox, harbor.config.environment.healthcheck)


async def _solve(harbor: HarborTask, sandbox: Sandbox, steps: SharedSteps | None) -> None:
    """Apply the reference solution, of each step before the verifier of the step. The last one is left to verify."""
    await _apply_solution(harbor, sandbox, None if steps is None else steps.step)
    while steps is not None and not steps.is_last:
        await steps.verify()
        if not steps.over:
            await steps.begin()
        if steps.over:
            return
        await _apply_solution(harbor, sandbox, steps.step)


async def _apply_solution(harbor: HarborTask, sandbox: Sandbox, step: HarborStep | None) -> None:
    folder = harbor.solution(step)
    assert folder is not None
    await put_folder(sandbox, harbor, folder, "/solution")
    agent = harbor.config.agent if step is None or step.agent.timeout_sec is None else step.agent
    env = SOLVE_ENV | harbor.env(harbor.config.solution.env)
    command = f"(/solution/solve.sh) > {AGENT_LOGS}/oracle.txt 2>&1"
    await shell(sandbox, command, agent.timeout_sec or MOST_SECONDS, env)


def _read(task: Task) -> HarborTask:
    return task.fields_as(HarborTask)


async def _needs_hooks(
    harbor: HarborTask, evaluation: Evaluation, hooks: list[str], rewards: Rewards, seconds: float
) -> bool:
    """Return whether the reward is lower without files by which code of the agent runs in the verifier, or may be."""
    assert evaluation.another is not None
    reward = reward_of(rewards, harbor.reward_key)
    if reward <= 0:
        return False
    async with evaluation.another() as sandbox:
        if not await without_hooks(sandbox, hooks):
            return True
        try:
            found = await _verified(harbor, sandbox, evaluation.artifact, max(seconds, 1.0))
        except StageTimeout:
            return True
    return found.rewards is None or reward_of(found.rewards, harbor.reward_key) < reward


def _score(harbor: HarborTask, rewards: Rewards | None, found: Verified, hooks: Sequence[str] = ()) -> Score:
    rewards = rewards or {}
    reward = reward_of(rewards, harbor.reward_key)
    said = ", ".join(f"{name} {value:g}" for name, value in rewards.items())
    notes = [f"the verifier gives {said}", *found.notes, *([found.output] if found.output else [])]
    suspicions = list(found.suspicions)
    if hooks:
        suspicions.append(
            f"the reward is lower, or not certain, without code that Python runs at its start: {hooks[0]}"
        )
    if reward <= 0 or not suspicions:
        return Score(reward, notes=notes, parts=rewards)
    return Score(reward, {"suspicious": 1.0}, [*notes, *(f"suspicious: {why}" for why in suspicions)], rewards)


def _printed(found: Verified) -> str:
    return f"; it printed at its end: {found.output}" if found.output else ""
