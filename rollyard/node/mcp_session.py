"""Session with an MCP server in a sandbox, over its standard input and output (Model Context Protocol, 2025-06-18).

Messages are JSON-RPC 2.0, one in each line. An agent may end the server, or write into its output: then calls have results that
say so. No fault of a server ends a rollout once its tools are listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from rollyard.core.aio import running
from rollyard.core.errors import SandboxLost, TaskError
from rollyard.sandbox.program import PAUSE_SECONDS, STDERR, STDOUT, Program, ProgramRefused, ProgramSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.json_schema import schema_of
from rollyard.tasks.own_tools import ToolResult
from rollyard.tasks.tool_results import shorten

PROTOCOL = "2025-06-18"
MAX_LINE_BYTES, MAX_NOISE_BYTES = 4 << 20, 16 << 20
LINE_COST_BYTES = 1 << 10
MAX_TOOLS = 512
MAX_COMPLAINT_BYTES = 2000
NO_SUCH_METHOD = -32601
LAST_WORDS_SECONDS = 2.0
"""Longest time between the end of a server's output and its exit code and last words."""


class McpTool(NamedTuple):
    name: str
    description: str
    parameters: dict[str, Any]


class _Broken(Exception):
    """The server has ended, writes something else than the protocol, or refuses a request."""


class McpSession:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ended = ""
        """Why no further answer comes; empty while the server runs."""
        self._complaint = bytearray()
        self._complaints_ended = asyncio.Event()
        self._sending = asyncio.Lock()
        self._noise = 0
        """Number of bytes of lines that were no answers, and LINE_COST_BYTES for each of these lines."""

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, sandbox: Sandbox, command: Sequence[str]) -> AsyncIterator[McpSession]:
        """Start a server. Raises TaskError, SandboxLost."""
        try:
            program = await sandbox.start_program(ProgramSpec(command))
        except ProgramRefused as error:
            raise TaskError(f"the MCP server {' '.join(command)!r} cannot be started: {error}") from None
        async with program:
            session = cls(program)
            async with running(session._read()), running(session._read_complaints()):
                yield session

    async def tools(self, only: Sequence[str] | None) -> list[McpTool]:
        """Greet the server, and return its tools: all, or those in `only`, in that order. Raises TaskError, SandboxLost."""
        try:
            client = {"name": "rollyard", "version": "1"}
            await self._request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
            await self._send({"method": "notifications/initialized"})
            found = {tool.name: tool async for tool in self._listed()}
        except _Broken as error:
            self._check_sandbox()
            raise TaskError(f"an MCP server of the task lists no tools: {error}") from None
        if lacking := [name for name in only or () if name not in found]:
            raise TaskError(
                f"an MCP server of the task has no tool {lacking[0]!r}; it has {', '.join(found) or 'none'}"
            )
        return [found[name] for name in only] if only is not None else list(found.values())

    def caller(self, tool: str) -> Callable[[dict[str, Any], float], Awaitable[ToolResult]]:
        """Return a function that calls a tool."""

        async def call(arguments: dict[str, Any], timeout: float) -> ToolResult:
            try:
                async with asyncio.timeout(timeout):
                    answer = await self._request("tools/call", {"name": tool, "arguments": arguments})
            except _Broken as error:
                self._check_sandbox()
                return ToolResult(f"Error: {error}", failed=True)
            content = answer.get("content")
            texts = [_text(part) for part in content] if isinstance(content, list) else []
            text = shorten("\n".join(texts)) or "(no output)"
            failed = answer.get("isError") is True
            return ToolResult(f"Error: {text}" if failed else text, failed=failed)

        return call

    async def _listed(self) -> AsyncIterator[McpTool]:
        cursor, count = None, 0
        while True:
            page = await self._request("tools/list", {"cursor": cursor} if cursor is not None else {})
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise _Broken("its answer to tools/list has no list of tools")
            for tool in tools:
                try:
                    name, schema = tool["name"], tool.get("inputSchema", {"type": "object"})
                    yield McpTool(str(name), str(tool.get("description") or ""), _checked(schema))
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise _Broken(f"a tool in its list cannot be used: {error}") from None
            cursor, count = page.get("nextCursor"), count + len(tools)
            if cursor is None:
                return
            if count > MAX_TOOLS or not tools:
                raise _Broken(f"its list of tools does not end after {count}")

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result. Raises _Broken."""
        if self._ended:
            raise _Broken(self._ended)
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": number, "method": method, "params": params})
            found = await answer
        finally:
            self._waiting.pop(number, None)
        result = found.get("result")
        if isinstance(result, dict):
            return result
        error = found.get("error")
        raise _Broken(shorten(str(error.get("message") if isinstance(error, dict) else "the answer has no result")))

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            try:
                await self._program.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            except asyncio.CancelledError:  # half of a message may be in the pipe
                self._end("the tool server did not read a message in time")
                raise

    def _check_sandbox(self) -> None:
        """Raise SandboxLost if the server has ended with its sandbox."""
        ended = self._program.ended
        if ended.done() and not ended.cancelled() and isinstance(error := ended.exception(), SandboxLost):
            raise error

    async def _read(self) -> None:
        """Read messages until the server ends."""
        rest = bytearray()
        while chunk := await self._program.read(STDOUT):
            *lines, last = chunk.split(b"\n")
            for line in lines:
                await self._take(bytes(rest) + line)
                rest.clear()
            rest += last
            if len(rest) > MAX_LINE_BYTES or self._noise > MAX_NOISE_BYTES:
                return self._end("the tool server wrote too much that is no answer")
            await asyncio.sleep(0)  # `read` does not wait while there is output
        with contextlib.suppress(TimeoutError):  # a child of the server may hold its standard error open
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await asyncio.wait([self._program.ended])
                await self._complaints_ended.wait()
        code = f" with exit code {self._program.ended.result()}" if _succeeded(self._program.ended) else ""
        words = self._complaint.decode(errors="replace").strip()
        self._end(f"the tool server has ended{code}" + (f": {words}" if words else ""))

    async def _read_complaints(self) -> None:
        while chunk := await self._program.read(STDERR):
            self._complaint += chunk
            del self._complaint[:-MAX_COMPLAINT_BYTES]
            await asyncio.sleep(PAUSE_SECONDS)
        self._complaints_ended.set()

    async def _take(self, line: bytes) -> None:
        try:
            message = from_json(line)
        except ValueError:
            message = None  # a server may print other lines by mistake
        number = message.get("id") if isinstance(message, dict) else None
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if isinstance(message, dict) and "method" not in message and waiting is not None and not waiting.done():
            return waiting.set_result(message)
        self._noise += len(line) + LINE_COST_BYTES
        if isinstance(message, dict) and "method" in message and number is not None:
            known = {"result": {}} if message["method"] == "ping" else {"error": _unknown(message["method"])}
            await self._send({"id": number, **known})

    def _end(self, why: str) -> None:
        self._ended = why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_Broken(why))


def _checked(schema: Any) -> dict[str, Any]:
    """Return the schema of a tool's arguments. A keyword that is not checked here is left to the server."""
    try:
        return schema_of(schema)
    except ValueError:
        properties: dict[str, Any] = {str(name): {} for name in schema.get("properties", {})}
        return {"type": "object", "properties": properties, "required": list(schema.get("required", []))}


def _text(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    return str(part.get("text", "")) if part.get("type") == "text" else f"[{part.get('type')} left out]"


def _unknown(method: Any) -> dict[str, Any]:
    return {"code": NO_SUCH_METHOD, "message": f"this client has no method {method!r}"}


def _succeeded(ended: asyncio.Future[int]) -> bool:
    return ended.done() and not ended.cancelled() and ended.exception() is None
