"""Task kind `env`: an environment with `reset` and `step` replies to each turn, and gives its reward."""

from __future__ import annotations

from rollyard.kinds.env_task import EnvTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.base import Environment, Evaluation, Message, Score, sum_of_rewards
from rollyard.tasks.environments.child_environment import ChildEnvironment
from rollyard.tasks.environments.openenv import OpenEnvironment
from rollyard.tasks.environments.sandbox_environment import SandboxEnvironment
from rollyard.tasks.task_files import write_files
from rollyard.trajectory import Artifact


class EnvHandler:
    eval_needs_sandbox = False

    def tools(self, task: Task) -> list[str]:
        return list(task.fields_as(EnvTask).tools)

    def prompt(self, task: Task) -> list[Message]:
        system = task.fields_as(EnvTask).system
        return [] if system is None else [{"role": "system", "content": system}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        await write_files(sandbox, task.fields_as(EnvTask).files)

    async def environment(self, task: Task, sandbox: Sandbox) -> Environment:
        found = task.fields_as(EnvTask)
        if found.framework == "openenv":
            return await OpenEnvironment.start(found)
        return await (
            SandboxEnvironment.start(found, sandbox) if found.where == "sandbox" else ChildEnvironment.start(found)
        )

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        steps = sum(turn.observation is not None for turn in evaluation.turns)
        notes = [f"the sum of the rewards of {steps} replies of the environment"]
        return Score(sum_of_rewards(evaluation.turns), {"steps": float(steps)}, notes)
