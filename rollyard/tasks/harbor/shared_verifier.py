"""Steps whose verifiers run in the agent's sandbox, one after the other, as in Harbor."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rollyard.core.errors import TaskError
from rollyard.kinds.harbor_config import HarborStep
from rollyard.kinds.harbor_task import HarborTask
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Message, Reply
from rollyard.tasks.harbor.artifacts import run_hooks
from rollyard.tasks.harbor.healthcheck import wait_until_healthy
from rollyard.tasks.harbor.reward_files import Rewards, reward_of
from rollyard.tasks.harbor.step_rewards import StepRewards, is_failed
from rollyard.tasks.harbor.verifier_run import (
    AGENT_LOGS,
    TESTS,
    VERIFIER_LOGS,
    Verified,
    empty_folders,
    put_folder,
    run_verifier,
    shell,
)
from rollyard.trajectory import Turn

SETUP_SECONDS = 600.0
"""Longest time of a step's setup.sh. The stage in which it runs has a limit too."""


class SharedSteps:
    """The steps of one rollout; one without a name, if the task has none."""

    def __init__(self, task: HarborTask, sandbox: Sandbox) -> None:
        self._task = task
        self._sandbox = sandbox
        self._steps = task.steps
        self._next = 0
        self.results: list[StepRewards] = []
        self.over = False
        """True: no step is left, or one ended the work."""

    @property
    def step(self) -> HarborStep | None:
        """The present step."""
        return self._steps[self._next]

    @property
    def is_last(self) -> bool:
        return self._next + 1 == len(self._steps)

    async def begin(self) -> None:
        """Prepare the present step. If that fails, the work is over."""
        step = self.step
        if step is None:
            return
        folder = f"steps/{step.name}/workdir/"
        try:
            await empty_folders(self._sandbox, AGENT_LOGS)
            if self._next:
                await empty_folders(self._sandbox, VERIFIER_LOGS, TESTS)
            await put_folder(self._sandbox, self._task, folder, self._sandbox.workdir)
            if f"{folder}setup.sh" in self._task.files:
                script = shlex.quote(f"{self._sandbox.workdir.rstrip('/')}/setup.sh")
                code = await shell(self._sandbox, f"bash {script}", SETUP_SECONDS)
                if code != 0:
                    raise TaskError(f"setup.sh ended with {'no' if code is None else code} exit code")
            await wait_until_healthy(self._sandbox, step.healthcheck)
        except TaskError as error:
            if await self._sandbox.was_hurt():
                raise
            self._end(None, f"the step cannot begin: {error}")

    async def verify(self) -> None:
        """Score the present step, and go to the next one, which is not prepared yet."""
        step, verifier = self.step, self._task.config.verifier
        await run_hooks(self._sandbox, [*verifier.collect, *(step.verifier.collect if step is not None else [])])
        seconds = verifier.timeout_sec if step is None else step.verifier.timeout_sec
        try:
            found = await run_verifier(self._sandbox, self._task, seconds, step)
        except TaskError as error:  # EVAL finds out whether it runs without the agent's files
            if await self._sandbox.was_hurt():
                raise
            found = Verified(None, f"the verifier cannot run in the sandbox that the agent leaves: {error}")
        if found.rewards is None or (step is not None and is_failed(found.rewards, step.thresholds)) or self.is_last:
            self._end(found.rewards, found.why)
        else:
            self._add(found.rewards)
            self._next += 1

    async def finish(self) -> None:
        """Score the present step and all that are left, in which the agent does nothing."""
        while not self.over:
            await self.verify()
            if not self.over:
                await self.begin()

    def _add(self, rewards: Rewards | None, why: str = "") -> None:
        self.results.append(StepRewards(self.step.name if self.step is not None else "", rewards, why))

    def _end(self, rewards: Rewards | None, why: str) -> None:
        self._add(rewards, why)
        self.over = True


class StepsEnvironment:
    """The other side of a conversation over several steps: a turn without a tool call ends a step, and the reply has the
    instruction of the next one."""

    every_turn = False

    def __init__(self, task: HarborTask, steps: SharedSteps) -> None:
        self._task = task
        self._steps = steps
        self.opening: Sequence[Message] = [{"role": "user", "content": self._instruction()}]

    async def reply(self, turn: Turn) -> Reply:
        steps = self._steps
        if steps.over:
            return Reply(done=True)
        await steps.verify()
        rewards = steps.results[-1].rewards
        reward = None if rewards is None else reward_of(rewards, self._task.reward_key)
        if not steps.over:
            await steps.begin()
        if steps.over:
            return Reply(reward=reward, done=True)
        return Reply(self._instruction(), reward)

    async def close(self) -> None:
        """The sandbox ends with the rollout."""

    def _instruction(self) -> str:
        return self._task.instruction(self._steps.step)
