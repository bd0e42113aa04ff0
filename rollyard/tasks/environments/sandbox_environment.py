"""An environment in the rollout's sandbox, for an environment that runs code which the model wrote.

The agent has no tools in this sandbox. The environment is the only process there beside the sandbox agent.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from typing import Self

from rollyard.core.aio import end_tasks
from rollyard.core.errors import NodeFault, RollyardError, TaskError
from rollyard.kinds.env_task import EnvTask
from rollyard.sandbox.base import CommandResult
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox_agent.settings import HOME, WORKSPACE
from rollyard.tasks.environments.driver_environment import (
    ADAPTERS,
    MAX_LINE_BYTES,
    PROGRAM,
    START_SECONDS,
    DriverEnvironment,
    answer_within,
)

PROGRAMS = f"{HOME}/.rollyard"
DRIVER = f"{PROGRAMS}/{PROGRAM.name}"
MAX_COMMAND_SECONDS = 20 * 86_400.0
LAST_OUTPUT_CHARS = 1000


class SandboxEnvironment(DriverEnvironment):
    """One environment, whose process connects to a port of its sandbox's own loopback."""

    def __init__(
        self,
        task: EnvTask,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        command: asyncio.Task[CommandResult],
    ) -> None:
        super().__init__(task, reader, writer)
        self._command = command

    @classmethod
    async def start(cls, task: EnvTask, sandbox: Sandbox) -> Self:
        """Start the process and reset the environment. Raises TaskError if the process ends before it connects, and else
        as `reply` does."""
        for program in (PROGRAM, *filter(None, [ADAPTERS.get(task.framework)])):
            await sandbox.write_file(f"{PROGRAMS}/{program.name}", await asyncio.to_thread(program.read_bytes))
        listener = await sandbox.listen()
        listener.setblocking(False)
        call = shlex.join([task.python or "python3", DRIVER, str(listener.getsockname()[1])])
        command = asyncio.create_task(sandbox.bash(f"(cd {WORKSPACE} && exec {call})", MAX_COMMAND_SECONDS))
        try:
            connection = await _connection(task, listener, command)
            reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
            made = cls(task, reader, writer, command)
            await made.begin()
        except BaseException:
            await end_tasks(command)
            raise
        finally:
            listener.close()
        return made

    async def close(self) -> None:
        """Leave the process. It ends with its connection, or at the latest with the sandbox."""
        self._writer.close()
        await end_tasks(self._command)

    async def why_ended(self) -> RollyardError:
        return NodeFault(_how_it_ended(self._task, await self._command))


async def _connection(task: EnvTask, listener: socket.socket, command: asyncio.Task[CommandResult]) -> socket.socket:
    """Wait until the process connects. Raises TaskError if it ends instead."""
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        async with answer_within(START_SECONDS, task.env, "the start of its process"):
            await asyncio.wait([accepting, command], return_when=asyncio.FIRST_COMPLETED)
        if not accepting.done():
            raise TaskError(_how_it_ended(task, command.result()))
        return accepting.result()[0]
    finally:
        accepting.cancel()


def _how_it_ended(task: EnvTask, done: CommandResult) -> str:
    output = done.output.strip()[-LAST_OUTPUT_CHARS:]
    return f"the process of the environment {task.env} ended with exit code {done.exit_code} in the sandbox: {output}"
