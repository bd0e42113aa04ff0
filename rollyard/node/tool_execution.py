"""Runs a model's tool calls in a sandbox. A mistake of the agent leads to a tool result, never to an exception."""

from __future__ import annotations

from typing import Any

from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import tool_schemas
from rollyard.tokens.tool_calls.hermes import FORM


class Tools:
    """The tools offered to one rollout."""

    def __init__(self, offered: list[str], sandbox: Sandbox, timeout: float, form: str = FORM) -> None:
        """`form`: description of how this model writes a call. The reply to a malformed call quotes this
        description."""
        self.offered = offered
        self._sandbox = sandbox
        self._timeout = timeout
        self._form = form

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a call and return the text for the model. Raises only SandboxLost and SandboxBroken."""
        if name not in self.offered:
            return tool_schemas.unknown_tool_result(name, self.offered)
        parameters = tool_schemas.SCHEMAS[name]["function"]["parameters"]
        if missing := [p for p in parameters["required"] if p not in arguments]:
            return tool_schemas.malformed_call_result(f"{name} needs {', '.join(missing)}", self._form)
        if unknown := [a for a in arguments if a not in parameters["properties"]]:
            return tool_schemas.malformed_call_result(
                f"{name} has no argument {unknown[0]!r}; it takes {', '.join(parameters['properties'])}", self._form
            )
        if wrong := [p for p in parameters["required"] if not isinstance(arguments[p], str)]:
            return tool_schemas.malformed_call_result(f"{wrong[0]} must be a string", self._form)
        match name:
            case "bash":
                done = await self._sandbox.bash(arguments["command"], self._timeout)
                late = self._timeout if done.timed_out else None
                return tool_schemas.bash_result(
                    done.output, done.exit_code, timed_out_after=late, restarted=done.restarted, notes=done.notes
                )
            case "ipython":
                cell = await self._sandbox.ipython(arguments["code"], self._timeout)
                late = self._timeout if cell.timed_out else None
                return tool_schemas.ipython_result(
                    cell.output, timed_out_after=late, restarted=cell.restarted, notes=cell.notes
                )
            case _:
                edit = await self._sandbox.edit(**arguments)
                return tool_schemas.shorten(edit.output)
