"""An environment in a child process of the node agent, run by the Python in which the environment is installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Self

from rollyard.core.errors import NodeFault, TaskError
from rollyard.kinds.env_task import EnvTask
from rollyard.tasks.environments.driver_environment import MAX_LINE_BYTES, PROGRAM, DriverEnvironment


class ChildEnvironment(DriverEnvironment):
    """One environment, whose process no process of a sandbox can reach."""

    def __init__(self, task: EnvTask, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        assert child.stdin is not None
        super().__init__(task, child.stdout, child.stdin)
        self._child = child

    @classmethod
    async def start(cls, task: EnvTask) -> Self:
        """Start the process and reset the environment. Raises TaskError if there is no such interpreter, and else as
        `reply` does."""
        made = cls(task, await _start_process(task.python or sys.executable))
        try:
            await made.begin()
        except BaseException:
            await made.close()
            raise
        return made

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._child.returncode is None:
                os.killpg(self._child.pid, signal.SIGKILL)
        try:
            await self._child.wait()
        finally:
            # As in `checker_pool`: pipes that the garbage collector closes after the loop's end cause a warning. To close
            # them before `wait` would lose the exit code.
            self._child._transport.close()  # type: ignore[attr-defined]

    async def why_ended(self) -> NodeFault:
        await self.close()
        code = self._child.returncode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return NodeFault(f"the process of the environment {self._task.env} ended with {how}; see this node agent's log")


async def _start_process(python: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            python, str(PROGRAM), stdin=pipe, stdout=pipe, start_new_session=True, limit=MAX_LINE_BYTES
        )
    except (FileNotFoundError, PermissionError) as error:
        raise TaskError(f"`python` of the task cannot be run on this node: {error}") from None
