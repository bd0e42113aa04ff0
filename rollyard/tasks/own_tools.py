"""Tools that a task handler brings: a Python function beside the node agent, a program in the sandbox, or the tools of an MCP
server in the sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from rollyard.sandbox.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call."""

    text: str
    """Text that the model reads."""
    done: bool = False
    """True: the conversation ends after this turn."""
    failed: bool = False
    """True: the call counts as failed, in the turn and in the rollout's profile. The text should say why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that runs in the node agent. Its exceptions have the same meaning as those of a handler; the agent's mistakes
    get a result."""

    name: str
    description: str
    parameters: Mapping[str, Any] | type[BaseModel]
    """JSON schema of the arguments, an object; or a pydantic model."""
    call: Callable[[Sandbox, dict[str, Any]], Awaitable[str | ToolResult]]
    """`async call(sandbox, arguments)`. The arguments follow `parameters`."""


@dataclass(frozen=True, slots=True)
class ProgramTool:
    """A program in the sandbox. It gets the arguments as JSON on its standard input, and the model reads what it prints."""

    name: str
    description: str
    parameters: Mapping[str, Any] | type[BaseModel]
    """JSON schema of the arguments, an object; or a pydantic model."""
    command: Sequence[str]
    """Program and its arguments. It starts in the image's working folder."""
    repeatable: bool = True
    """False: a call must not be run again, when a rollout goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server in the sandbox, which talks over its standard input and output. It starts after `init`, and the model gets
    its tools."""

    command: Sequence[str]
    """Program and its arguments. It starts in the image's working folder."""
    only: Sequence[str] | None = None
    """Names of the tools that the model gets; None: all."""


OfferedTool = str | Tool | ProgramTool | McpServer
"""Name of a built-in tool, or a tool of the handler's own."""


async def _submit(sandbox: Sandbox, arguments: dict[str, Any]) -> ToolResult:
    return ToolResult("The work was submitted.", done=True)


SUBMIT = Tool(
    "submit",
    "Submit the work and end the conversation. Call it once everything is done.",
    {"type": "object", "properties": {}, "additionalProperties": False},
    _submit,
)
"""Built-in tool with which the model ends the conversation."""
