"""An agent that is a command inside the sandbox. Each such sandbox has its own gateway, which answers the
command's model calls.

The gateway runs outside the sandbox, but the gateway's socket listens on the sandbox's own loopback. So the sandbox
needs no network.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from rollyard.core.aio import running
from rollyard.core.errors import SandboxBroken, SandboxLost, TaskError
from rollyard.gateway.app import KEY_PREFIX, build
from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.session.session import GatewaySession
from rollyard.kinds.rollout import AgentSpec, Status
from rollyard.sandbox.base import CommandResult
from rollyard.sandbox.printed_output import PrintedOutput
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox_agent.settings import HOME
from rollyard.tasks.tool_results import shorten

log = logging.getLogger(__name__)

FOLDER = f"{HOME}/.rollyard"
PROMPT_FILE, SYSTEM_FILE = f"{FOLDER}/prompt.txt", f"{FOLDER}/system-prompt.txt"
SHUTDOWN_SECONDS = 1.0
MAX_COMMAND_SECONDS = 20 * 86_400.0
"""Upper limit for a command. RUN's time limit normally ends a command earlier, but the time during which no model
server is available does not count towards that limit. The upper limit is below 24 days, the longest timeout that poll()
accepts."""
LAST_OUTPUT_CHARS = 1000
OUTPUT_SECONDS = 5.0
MAX_CONNECTIONS = 128
"""Greatest number of connections of one sandbox. Each connection uses a file descriptor of the node agent."""


class _LimitedConnection(asyncio.Protocol):
    """Passes a new connection to the gateway's web server, or closes it if there are too many connections."""

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._server.connections) >= MAX_CONNECTIONS:
            transport.abort()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


class Harness:
    """One command, whose model calls go to `session`."""

    def __init__(self, sandbox: Sandbox, session: GatewaySession) -> None:
        self._sandbox = sandbox
        self._session = session
        self.cut_short: str | None = None
        """Sentence that says why `run` returned Truncated."""
        self._printed: PrintedOutput | None = None
        """Output of the command that has ended."""

    @property
    def output(self) -> str | None:
        """Output of the command that has ended, in the length of a tool's result; None if the command has not ended."""
        return shorten(self._printed.kept.decode(errors="replace")) if self._printed is not None else None

    async def printed(self, position: int) -> tuple[str, int]:
        """Return what the command has printed after the first `position` bytes, and the position after this text.

        While the command runs, a character of which only a part was printed is left for later. The middle of a long
        output is missing.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if self._printed is not None:
            output, reached = self._printed.after(position)
            return decoder.decode(output, final=True), max(position, reached)
        output, reached = await self._sandbox.printed(position)
        text, (part, _) = decoder.decode(output), decoder.getstate()
        return text, max(position, reached - len(part))  # the command may have ended just before, and nothing is there

    async def run(self, agent: AgentSpec, prompt: Sequence[Mapping[str, Any]]) -> tuple[Status, int | None]:
        """Run the command; return the status and the exit code.

        The status is Completed if the command ends by itself with exit code 0 within all limits, else Truncated. Raises
        SandboxLost, TaskError if the prompt cannot be written, and the error that made the session unusable. If
        the command ends without an answered model call, raises the session's ContextExceeded or EndpointRefused, or
        else TaskError.
        """
        async with self._gateway() as base:
            await self._write_prompt(prompt)
            done = await self._command(agent, base)
        session = self._session
        words = "; ".join([done.output.strip()[-LAST_OUTPUT_CHARS:], *done.notes])
        log.info("session %s: its command ended with %s", session.id, "; ".join([str(done.exit_code), *done.notes]))
        if not session.calls:
            raise (
                session.exceeded
                or session.refused
                or TaskError(
                    f"the agent's command ended with exit code {done.exit_code} before its first model call: {words}"
                )
            )
        whole = done.exit_code == 0 and not session.truncated
        if not whole:
            code = "no exit code" if done.exit_code is None else f"exit code {done.exit_code}"
            self.cut_short = session.reached_limit or f"the agent's command ended with {code}"
        return Status.COMPLETED if whole else Status.TRUNCATED, done.exit_code

    @asynccontextmanager
    async def _gateway(self) -> AsyncIterator[str]:
        """Serve the gateway; yield its base URL inside the sandbox."""
        listener = await self._sandbox.listen()
        runner = web.AppRunner(
            build(self._find),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            auto_decompress=False,
        )
        accepting: asyncio.Server | None = None
        try:
            port = listener.getsockname()[1]
            await runner.setup()
            assert runner.server is not None
            make_connection = partial(_LimitedConnection, runner.server)
            accepting = await asyncio.get_running_loop().create_server(make_connection, sock=listener)
            yield f"http://127.0.0.1:{port}"
        finally:
            self._session.close()
            if accepting is not None:
                accepting.close()
            await runner.cleanup()
            listener.close()

    async def _find(self, request: web.Request, named: str | None) -> GatewaySession:
        """Return the session. A request need not name the session if the sandbox has a loopback of its own, because every
        connection then comes from this sandbox. The name of another session is refused."""
        if named is None and self._sandbox.spec.host_network:
            raise GatewayError(
                401, "authentication_error", "send the key that OPENAI_API_KEY and ANTHROPIC_API_KEY have"
            )
        if named not in (None, self._session.id):
            raise GatewayError(403, "permission_error", "this gateway serves only the session of its own sandbox")
        return self._session

    async def _write_prompt(self, prompt: Sequence[Mapping[str, Any]]) -> None:
        for path, system in ((SYSTEM_FILE, True), (PROMPT_FILE, False)):
            texts = [str(m["content"]) for m in prompt if (m["role"] == "system") == system]
            try:
                await self._sandbox.write_file(path, "\n\n".join(texts).encode("utf-8", "replace"))
            except OSError as error:  # the image, or the size of the sandbox's disk, would refuse a retry too
                raise TaskError(f"the prompt cannot be written to {path} in the sandbox: {error.strerror}") from None

    async def _command(self, agent: AgentSpec, base: str) -> CommandResult:
        script = _script(agent, base, self._session.id, self._sandbox.workdir)
        async with running(self._sandbox.bash(script, MAX_COMMAND_SECONDS)) as command:
            either: set[asyncio.Future[Any]] = {command, self._session.failure}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not command.done():  # it will be stopped
                    await self._keep_output()
            if self._session.failure.done():
                raise self._session.failure.result()
            self._printed = command.result().printed
            return command.result()

    async def _keep_output(self) -> None:
        with contextlib.suppress(SandboxBroken, SandboxLost, TimeoutError):
            async with asyncio.timeout(OUTPUT_SECONDS):
                self._printed = PrintedOutput(*await self._sandbox.printed(0))


def _script(agent: AgentSpec, base: str, session: str, workdir: str) -> str:
    """Wrap the command in a shell of its own, so that `exit` and `set -e` affect only the command."""
    assert agent.command is not None
    key = f"{KEY_PREFIX}{session}"
    env = {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_BASE": f"{base}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "ROLLYARD_PROMPT_FILE": PROMPT_FILE,
        "ROLLYARD_SYSTEM_PROMPT_FILE": SYSTEM_FILE,
        **agent.env,
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    return f"(\n{exports}cd {shlex.quote(workdir)} || cd /\n{agent.command}\n)"
