"""The agent's part of RUN in a rollout that checks its task: the reference solution, nothing at all, or a script. No model
is called."""

from __future__ import annotations

import asyncio
import shlex

from rollyard.kinds.rollout import Status
from rollyard.node.agent_run import AgentResult, budget_ended
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.trajectory import Turn
from rollyard.wire.node import Lease


async def run_check(lease: Lease, handler: GuardedHandler, sandbox: Sandbox, budget: float) -> AgentResult:
    """Do the work for at most `budget` seconds. An answer in words is a turn without tokens. Raises TaskError if the task has
    no reference solution, and as `Sandbox.bash`."""
    handler.tools(lease.task)  # a model would get them, so a fault in them is a fault of the task
    handler.prompt(lease.task)
    status, cut_short, answer = Status.COMPLETED, None, None
    try:
        async with asyncio.timeout(budget):
            if lease.agent.type == "solve":
                answer = await handler.solve(lease.task, sandbox)
            elif lease.agent.script is not None:
                script = f"(\ncd {shlex.quote(sandbox.workdir)} || cd /\n{lease.agent.script}\n)"
                answer = (await sandbox.bash(script, budget)).output
    except TimeoutError:
        status, cut_short = Status.TRUNCATED, budget_ended(budget)
    turns = [] if answer is None else [_said(answer)]
    return AgentResult(status, [], turns, {}, overdue=cut_short is not None, cut_short=cut_short)


def _said(text: str) -> Turn:
    return Turn(segment=0, prompt_length=0, response_length=0, text=text, finish_reason="stop")
