"""Handler of the task kind `harbor`.

The verifier runs in a fresh sandbox of the image with the files that the agent has changed, and that count. So no process of
the agent is there, and nothing that it wrote about its reward.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time

from rollyard.core.errors import StageTimeout, TaskError
from rollyard.kinds.harbor_task import INSTRUCTION, LOOSE, SOLVE, HarborTask
from rollyard.kinds.task import Task
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import RestoreRules
from rollyard.tasks import system_prompts
from rollyard.tasks.base import Evaluation, Message, Score
from rollyard.tasks.harbor.counted_changes import RULES
from rollyard.tasks.harbor.reward_files import reward_of
from rollyard.tasks.harbor.verifier_run import AGENT_LOGS, Verified, make_folders, put_folder, run_verifier, shell
from rollyard.trajectory import Artifact

_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
MOST_SECONDS = 86_400.0
"""Time of a solution whose task names none; RUN has a limit too."""
SOLVE_ENV = {"DEBIAN_FRONTEND": "noninteractive"}


class HarborHandler:
    eval_needs_sandbox = True

    def __init__(self) -> None:
        self._sound: dict[str, bool] = {}
        """Image and task -> whether the verifier gives a reward to the task's own solution."""
        self._checking: dict[str, asyncio.Lock] = {}

    def tools(self, task: Task) -> list[str]:
        _read(task)
        return ["bash", "editor"]

    def prompt(self, task: Task) -> list[Message]:
        harbor = _read(task)
        system = system_prompts.HARBOR if harbor.system is None else harbor.system
        instruction = without_canary(harbor.content(INSTRUCTION).decode(errors="replace"))
        return [{"role": "system", "content": system}, {"role": "user", "content": instruction}]

    async def init(self, task: Task, sandbox: Sandbox) -> None:
        await make_folders(sandbox)
        await put_folder(sandbox, _read(task), LOOSE, sandbox.workdir)

    async def solve(self, task: Task, sandbox: Sandbox) -> None:
        harbor = _read(task)
        if SOLVE not in harbor.files:
            raise TaskError(f"the task has no reference solution: its folder has no {SOLVE}")
        await _solve(harbor, sandbox, harbor.config.agent.timeout_sec or MOST_SECONDS)

    def eval_from_snapshot(self, task: Task) -> bool:
        return True

    def restore_rules(self, task: Task) -> RestoreRules:
        return RULES

    async def collect(self, task: Task, sandbox: Sandbox) -> Artifact:
        return {}

    async def evaluate(self, task: Task, evaluation: Evaluation) -> Score:
        harbor, start = _read(task), time.monotonic()
        assert evaluation.sandbox is not None
        wanted = harbor.config.verifier.timeout_sec
        found = await run_verifier(evaluation.sandbox, harbor, min(wanted, evaluation.seconds))
        if found.rewards is not None:
            return _score(harbor, found)
        if found.timed_out and evaluation.seconds < wanted:
            raise StageTimeout(
                f"the verifier may take {wanted:g} s, and EVAL has {evaluation.seconds:g} s for it: raise the pool's "
                "`stages.eval.timeoutSeconds`"
            )
        left = evaluation.seconds - (time.monotonic() - start)
        if not await self._is_sound(harbor, evaluation, left):
            raise TaskError(f"{found.why}, and with the task's own solution it gives no reward either{_printed(found)}")
        notes = [f"{found.why}, and with the task's own solution it gives a reward", found.output]
        return Score(0.0, {"verifier_failed": 1.0, "timed_out": float(found.timed_out)}, notes)

    async def _is_sound(self, harbor: HarborTask, evaluation: Evaluation, seconds: float) -> bool:
        """Return whether the verifier gives a reward to the reference solution, or to nothing if the task has none, without
        files of the agent. It is found out once for an image and a task. Raises StageTimeout."""
        assert evaluation.sandbox is not None
        assert evaluation.another is not None
        text = f"{evaluation.sandbox.image.fingerprint}\n{harbor.model_dump_json()}"
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        async with self._checking.setdefault(key, asyncio.Lock()):
            if key not in self._sound:
                if seconds <= 0:
                    raise StageTimeout(
                        "EVAL has no time left to find out whether the verifier works with the task's own solution: raise "
                        "the pool's `stages.eval.timeoutSeconds`"
                    )
                self._sound[key] = await self._gives_a_reward(harbor, evaluation, seconds)
            return self._sound[key]

    async def _gives_a_reward(self, harbor: HarborTask, evaluation: Evaluation, seconds: float) -> bool:
        assert evaluation.another is not None
        end, wanted = time.monotonic() + seconds, harbor.config.verifier.timeout_sec
        async with evaluation.another(files=False) as sandbox:
            await make_folders(sandbox)
            await put_folder(sandbox, harbor, LOOSE, sandbox.workdir)
            if SOLVE in harbor.files:
                await _solve(harbor, sandbox, seconds)
            left = end - time.monotonic()
            found = await run_verifier(sandbox, harbor, min(wanted, max(left, 0.0)))
        if found.timed_out and left < wanted:
            raise StageTimeout(
                "EVAL has too little time to find out whether the verifier works with the task's own solution: raise the "
                "pool's `stages.eval.timeoutSeconds`"
            )
        return found.rewards is not None


async def _solve(harbor: HarborTask, sandbox: Sandbox, seconds: float) -> None:
    await put_folder(sandbox, harbor, "solution/", "/solution")
    env = SOLVE_ENV | harbor.env(harbor.config.solution.env)
    await shell(sandbox, f"(/solution/solve.sh) > {AGENT_LOGS}/oracle.txt 2>&1", seconds, env)


def _read(task: Task) -> HarborTask:
    return task.fields_as(HarborTask)


def _score(harbor: HarborTask, found: Verified) -> Score:
    assert found.rewards is not None
    reward = reward_of(found.rewards, harbor.reward_key)
    said = ", ".join(f"{name} {value:g}" for name, value in found.rewards.items())
    return Score(
        reward, notes=[f"the verifier gives {said}", *([found.output] if found.output else [])], parts=found.rewards
    )


def _printed(found: Verified) -> str:
    return f"; it printed at its end: {found.output}" if found.output else ""


def without_canary(text: str) -> str:
    """Return an instruction without the lines at its beginning that mark it for filters of training data."""
    lines = text.split("\n")
    count = next((i for i, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
    return "\n".join(lines[next((i for i in range(count, len(lines)) if lines[i].strip()), len(lines)) :])
