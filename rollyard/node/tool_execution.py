"""Runs a model's tool calls in a sandbox. A mistake of the agent leads to a tool result, never to an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import Any

from rollyard.node.own_tools import OwnTool
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import tool_results, tool_schemas
from rollyard.tasks.json_schema import fault
from rollyard.tasks.own_tools import ToolResult
from rollyard.tokens.tool_calls.hermes import FORM


class Tools:
    """The tools offered to one rollout."""

    def __init__(self, offered: Sequence[str | OwnTool], sandbox: Sandbox, timeout: float, form: str = FORM) -> None:
        """`form`: description of how this model writes a call. The reply to a malformed call quotes this
        description."""
        self.offered = [tool if isinstance(tool, str) else tool.name for tool in offered]
        self._own = {tool.name: tool for tool in offered if not isinstance(tool, str)}
        self._sandbox = sandbox
        self._timeout = timeout
        self._form = form
        self._lost: set[str] = set()
        self._free = asyncio.Event()
        self._free.set()

    def lose_state(self, names: Set[str]) -> None:
        """Say in the next result of each of these tools that its state is lost: the sandbox began with a snapshot."""
        self._lost = set(names)

    def hold(self) -> None:
        """Let no call begin any more."""
        self._free.clear()

    async def free(self) -> None:
        """Wait for ever if no call may begin any more."""
        await self._free.wait()

    def is_repeatable(self, name: str) -> bool:
        """Whether a call of this tool can be run again in another sandbox."""
        own = self._own.get(name)
        return own is None or own.repeatable

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a call and return the result for the model. Raises SandboxLost and SandboxBroken; for a handler's own tool also
        the errors of a handler."""
        await self.free()
        if name not in self.offered:
            return ToolResult(tool_results.unknown_tool_result(name, self.offered), failed=True)
        if (own := self._own.get(name)) is not None:
            return await self._call_own(own, arguments)
        if wrong := self._wrong_arguments(name, arguments):
            return ToolResult(wrong, failed=True)
        return await self._call_built_in(name, arguments)

    async def _call_own(self, tool: OwnTool, arguments: dict[str, Any]) -> ToolResult:
        if wrong := fault(arguments, tool.parameters):
            return ToolResult(tool_results.malformed_call_result(f"{tool.name}: {wrong}", self._form), failed=True)
        try:
            return await tool.run(arguments, self._timeout)
        except TimeoutError:
            return ToolResult(tool_results.bash_result("", None, timed_out_after=self._timeout), failed=True)

    def _wrong_arguments(self, name: str, arguments: dict[str, Any]) -> str | None:
        parameters = tool_schemas.SCHEMAS[name]["function"]["parameters"]
        if missing := [p for p in parameters["required"] if p not in arguments]:
            return tool_results.malformed_call_result(f"{name} needs {', '.join(missing)}", self._form)
        if unknown := [a for a in arguments if a not in parameters["properties"]]:
            return tool_results.malformed_call_result(
                f"{name} has no argument {unknown[0]!r}; it takes {', '.join(parameters['properties'])}", self._form
            )
        if wrong := [p for p in parameters["required"] if not isinstance(arguments[p], str)]:
            return tool_results.malformed_call_result(f"{wrong[0]} must be a string", self._form)
        return None

    async def _call_built_in(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        lost = name in self._lost
        self._lost.discard(name)
        match name:
            case "bash":
                done = await self._sandbox.bash(arguments["command"], self._timeout)
                late = self._timeout if done.timed_out else None
                restarted = done.restarted or lost
                text = tool_results.bash_result(
                    done.output, done.exit_code, timed_out_after=late, restarted=restarted, notes=done.notes
                )
                return ToolResult(text, failed=done.exit_code != 0)
            case "ipython":
                cell = await self._sandbox.ipython(arguments["code"], self._timeout)
                late = self._timeout if cell.timed_out else None
                text = tool_results.ipython_result(
                    cell.output, timed_out_after=late, restarted=cell.restarted or lost, notes=cell.notes
                )
                return ToolResult(text, failed=cell.error or cell.timed_out or cell.restarted)
            case _:
                edit = await self._sandbox.edit(**arguments)
                return ToolResult(tool_results.shorten(edit.output), failed=not edit.ok)
