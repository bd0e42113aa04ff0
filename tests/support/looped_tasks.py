"""A task kind with an agent loop of its own, which a test installs: a planner, and a worker that changes files."""

from __future__ import annotations

import os
from typing import Any

from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import Evaluation, LoopAgent, Score

ENTRY_POINTS = {
    "looped-1.dist-info/entry_points.txt": "[rollyard.tasks]\nlooped = tests.support.looped_tasks:LoopedHandler\n",
    "looped-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: looped\nVersion: 1\n",
}


class LoopedHandler:
    eval_needs_sandbox = False

    def tools(self, task: Task) -> list[str]:
        return ["bash"]

    def prompt(self, task: Task) -> list[dict[str, Any]]:
        return _user(task.fields["name"])

    async def init(self, task: Task, sandbox: Sandbox) -> None: ...

    async def agent_loop(self, task: Task, sandbox: Sandbox, agent: LoopAgent) -> None:
        """With the field `restless`, the loop tells the worker after its first turn in which process it runs."""
        name = task.fields["name"]
        planner = agent.conversation(_user(f"planner-{name}: Plan."), tools=[])
        plan = await planner.sample(max_tokens=50)
        worker = agent.conversation(_user(f"worker-{name}: Do this: {plan.text}"))
        turn = await worker.sample()
        if task.fields["restless"]:
            await worker.call_tools()
            worker.add(*_user(f"I am process {os.getpid()}."))
            turn = await worker.sample()
        while await worker.call_tools():
            turn = await worker.sample()
        planner.add(*_user(f"It says: {turn.text}"))
        await planner.sample(max_tokens=50)

    async def collect(self, task: Task, sandbox: Sandbox) -> dict[str, Any]:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        return Score(1.0)


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
