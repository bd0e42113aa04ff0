"""Tools of task handlers, ready to be called in one sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rollyard.core.errors import TaskError
from rollyard.node.mcp_session import McpSession
from rollyard.sandbox.program import ProgramRefused
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.json_schema import schema_of
from rollyard.tasks.own_tools import McpServer, OfferedTool, ProgramTool, Tool, ToolResult
from rollyard.tasks.tool_results import bash_result
from rollyard.tasks.tool_schemas import ToolSchema, tool_schema

Run = Callable[[dict[str, Any], float], Awaitable[ToolResult]]


@dataclass(frozen=True)
class OwnTool:
    """One tool of a handler."""

    name: str
    description: str
    parameters: Mapping[str, Any] | type[BaseModel]
    run: Run
    """`async run(arguments, timeout)`. The arguments follow `parameters`. Raises TimeoutError."""
    repeatable: bool = False
    """Whether a call that is run again in an equal sandbox does the same: it needs nothing outside of the sandbox's files, and
    changes nothing there."""

    @property
    def schema(self) -> ToolSchema:
        return tool_schema(self.name, self.description, schema_of(self.parameters))


async def start_tools(
    handler: GuardedHandler, tools: Sequence[OfferedTool], sandbox: Sandbox, stack: contextlib.AsyncExitStack
) -> list[str | OwnTool]:
    """Start the MCP servers, and return all tools. `stack` ends the servers.

    Raises TaskError if a server does not list its tools, or if two tools have one name.
    """
    found: list[str | OwnTool] = []
    for tool in tools:
        match tool:
            case str():
                found.append(tool)
            case Tool():
                found.append(OwnTool(tool.name, tool.description, tool.parameters, _function(handler, tool, sandbox)))
            case ProgramTool():
                run = _program(tool, sandbox)
                found.append(OwnTool(tool.name, tool.description, tool.parameters, run, tool.repeatable))
            case McpServer():
                session = await stack.enter_async_context(McpSession.started(sandbox, tool.command))
                found += [OwnTool(*one, session.caller(one.name)) for one in await session.tools(tool.only)]
    names = Counter(tool if isinstance(tool, str) else tool.name for tool in found)
    if twice := [name for name, count in names.items() if count > 1]:
        raise TaskError(f"two tools are called {twice[0]!r}; rename one, or name others in `McpServer(only=[...])`")
    return found


def _function(handler: GuardedHandler, tool: Tool, sandbox: Sandbox) -> Run:
    async def run(arguments: dict[str, Any], timeout: float) -> ToolResult:
        async with asyncio.timeout(timeout):
            return await handler.call_tool(tool, sandbox, arguments)

    return run


def _program(tool: ProgramTool, sandbox: Sandbox) -> Run:
    async def run(arguments: dict[str, Any], timeout: float) -> ToolResult:
        try:
            done = await sandbox.run(tool.command, json.dumps(arguments).encode(), timeout)
        except ProgramRefused as error:
            return ToolResult(f"Error: {error}", failed=True)
        late = timeout if done.timed_out else None
        text = bash_result(done.output, done.exit_code, timed_out_after=late, notes=done.notes)
        return ToolResult(text, failed=done.exit_code != 0)

    return run
