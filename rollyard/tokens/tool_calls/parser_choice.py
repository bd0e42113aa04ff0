"""Chooses the parser for a model's turns, by the parser's name or by the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_calls.base import MakeParser, ToolCallParser
from rollyard.tokens.tool_calls.deepseek import DeepSeek
from rollyard.tokens.tool_calls.glm_and_qwen_coder import Glm, Qwen3Coder
from rollyard.tokens.tool_calls.harmony import Harmony
from rollyard.tokens.tool_calls.hermes import Hermes
from rollyard.tokens.tool_calls.llama import Llama3
from rollyard.tokens.tool_calls.mistral import Mistral

ENTRY_POINTS = "rollyard.tool_parsers"
BUILT_IN: dict[str, tuple[MakeParser, tuple[str, ...]]] = {
    "harmony": (Harmony, ("<|channel|>",)),
    "mistral": (Mistral, ("[TOOL_CALLS]",)),
    "deepseek": (DeepSeek, ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁outputs▁begin｜>")),
    "glm": (Glm, ("<arg_key>",)),
    "qwen3_coder": (Qwen3Coder, ("<function=",)),
    "hermes": (Hermes, ("<tool_call>",)),
    "llama3_json": (Llama3, ("<|python_tag|>", "<|start_header_id|>")),
}
"""Name -> (parser, marks). A mark is a text in the chat templates of the parser's model families. For a template,
the first entry with a mark in the template is chosen."""


def parser_for(template: ChatTemplate, name: str | None = None, tools: Sequence[dict[str, Any]] = ()) -> ToolCallParser:
    """Return the built-in or installed parser `name`; without a name, the parser that fits the template, else Hermes.

    `tools`: schemas with the types of arguments, for families that write all arguments as text. Raises TaskError if the
    name is unknown or the installed parser cannot be created.
    """
    if name is None:
        shown = (family for family, (_, marks) in BUILT_IN.items() if any(mark in template.source for mark in marks))
        name = next(shown, "hermes")
    if name in BUILT_IN:
        parser: ToolCallParser = BUILT_IN[name][0](tools)
        return parser
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in installed:
        known = ", ".join(sorted([*BUILT_IN, *installed]))
        raise TaskError(f"this node has no tool-call parser {name!r}; it has {known}")
    try:
        made: ToolCallParser = installed[name].load()(tools)
    except Exception as error:  # the parser may be a plug-in
        raise TaskError(f"the tool-call parser {name!r} cannot be created: {error!r}") from error
    return made
