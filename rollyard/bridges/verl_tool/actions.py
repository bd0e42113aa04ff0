"""Model texts as actions, and outputs as observations, as VeRL-Tool's tools `ipython_code` and `bash_terminal` read and
frame them. Pure functions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

_BLOCKS = {
    "python": (r"<python>(.*?)</python>", r"```\s*python3?\b(.*?)```"),
    "bash": (r"<bash>(.*?)</bash>", r"```\s*(?:bash|sh|shell)\b(.*?)```", r"```\s*terminal\b(.*?)```"),
}
"""Forms of the blocks of each tool. The first form that the text has counts."""
_FRAMED_FENCES = {"python": ("python",), "bash": ("bash", "sh")}
"""Names of the fences after which the output is fenced too. After others it is so only at the end of the text."""
_OUTPUT_TAGS = {"python": "output", "bash": "o"}


@dataclass(frozen=True)
class Action:
    """Code of one model turn."""

    tool: Literal["python", "bash"]
    code: str


def action_of(text: str) -> Action | None:
    """Return the code in the text: all blocks of Python, or a tool call of it, or all blocks of bash. None without code."""
    for tool in ("python", "bash"):
        for form in _BLOCKS[tool]:
            if blocks := re.findall(form, text, re.S):
                return Action(tool, "\n".join(block.strip() for block in blocks))
        if tool == "python" and (code := _called(text)):
            return Action(tool, code)
    return None


def observation_of(text: str, tool: Literal["python", "bash"], output: str) -> str:
    """Put the output into the frame that the end of the text asks for."""
    output, tag = output.strip("\n "), _OUTPUT_TAGS[tool]
    if text.endswith("```output"):
        return f"\n{output}\n```\n"
    if text.endswith("</tool_call>") and tool == "python":
        return output
    if text.endswith(f"<{tag}>"):
        return f"\n{output}\n</{tag}>\n"
    if f"</{tool}>" in text:
        return f"\n<{tag}>\n{output}\n</{tag}>\n"
    if not (text.rstrip("\n ").endswith("```") or any(f"```{name}" in text for name in _FRAMED_FENCES[tool])):
        return f"\n{output}\n"
    closed = text.count("```") % 2 == 0
    return f"\n```output\n{output}\n```\n" if closed else f"output\n{output}\n```\n"


def _called(text: str) -> str:
    """Return the code of a call of the tool `python`; empty without one."""
    found = re.search(r"<tool_call>(.*?)</tool_call>", text, re.S)
    try:
        call = json.loads(found[1]) if found else {}
        named = call["name"] == "python"
        return str(call["arguments"]["code"]).strip() if named else ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
