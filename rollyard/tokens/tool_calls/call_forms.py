"""Forms of tool calls for engines that constrain sampling. Each parser builds the form of its family from these parts,
in the format of vLLM's structural tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.tokens.constraint import Form, json_form

NAME = re.compile(r"[\w.-]+")
"""Names that every family can write without quotes."""
Tools = Sequence[dict[str, Any]]


def forced_calls(parser: Any, tools: Tools, *, single: bool) -> Form:
    """Return the form of a turn that consists of calls of these tools: of one call if `single`, else of one or more.

    Raises TaskError if the parser has no such form, or if a tool's name cannot be written.
    """
    make = getattr(parser, "calls_form", None)  # parsers of plug-ins may lack it
    if make is None:
        raise TaskError(
            f"the tool-call parser {type(parser).__name__} cannot force calls: it has no method `calls_form`; "
            "leave the choice to the model (`auto`)"
        )
    form: Form = make(tools, single=single)
    return form


def tagged_calls(
    tools: Tools,
    begin: Callable[[str], str],
    end: str,
    *,
    separator: str = "",
    single: bool = False,
    style: str = "json",
) -> Form:
    """Return the form of calls that each begin with `begin(name)`, go on with the arguments, and finish with `end`.

    `style`: how arguments are written; a name of vLLM. Raises TaskError for a tool whose name cannot be written.
    """
    tags = [
        {"type": "tag", "begin": begin(_name(tool)), "content": _arguments(tool, style), "end": end} for tool in tools
    ]
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def text_form(value: str) -> Form:
    return {"type": "const_string", "value": value}


def in_order(*parts: Form) -> Form:
    return {"type": "sequence", "elements": list(parts)}


def either(*forms: Form) -> Form:
    return {"type": "or", "elements": list(forms)}


def _name(tool: dict[str, Any]) -> str:
    name = str(tool["function"]["name"])
    if not NAME.fullmatch(name):
        raise TaskError(
            f"a call of the tool {name[:64]!r} cannot be forced: its name may have letters, digits, `_`, `-` and `.` only"
        )
    return name


def _arguments(tool: dict[str, Any], style: str) -> Form:
    schema = tool["function"].get("parameters")
    schema = {"type": "object", **schema} if isinstance(schema, dict) else {"type": "object"}
    form = json_form(schema)
    # between tags, white space at the ends of a text becomes part of the argument
    return form if style == "json" else {**form, "style": style, "max_whitespace_cnt": 1}
