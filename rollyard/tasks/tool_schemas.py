"""Schemas of the built-in tools that can be offered to an agent.

Policies are trained on these exact strings, so a change of a string changes the environment.
"""

from __future__ import annotations

from typing import Any

ToolSchema = dict[str, Any]


def tool_schema(name: str, description: str, parameters: dict[str, Any]) -> ToolSchema:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> ToolSchema:
    return tool_schema(name, description, {"type": "object", "properties": properties, "required": required})


BASH = _tool(
    "bash",
    "Run a command in a bash shell that keeps its state.",
    {"command": {"type": "string"}},
    ["command"],
)
IPYTHON = _tool(
    "ipython",
    "Run Python code in a session that keeps its state.",
    {"code": {"type": "string"}},
    ["code"],
)
EDITOR = _tool(
    "editor",
    "View, create or edit a file.",
    {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        "path": {"type": "string"},
        "file_text": {"type": "string"},
        "old_str": {"type": "string"},
        "new_str": {"type": "string"},
        "insert_line": {"type": "integer"},
        "view_range": {"type": "array", "items": {"type": "integer"}},
    },
    ["command", "path"],
)
SCHEMAS: dict[str, ToolSchema] = {"bash": BASH, "ipython": IPYTHON, "editor": EDITOR}
