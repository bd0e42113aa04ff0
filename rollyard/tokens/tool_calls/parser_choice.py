"""Chooses the parser for a model's turns, by the parser's name or by the marks in the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from rollyard.core.errors import TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_turn import FINAL_RESPONSE
from rollyard.tokens.tool_calls import json_families, named_json, tag_families
from rollyard.tokens.tool_calls.base import MakeParser, ToolCall, ToolCallParser
from rollyard.tokens.tool_calls.gemma import FunctionGemma, Gemma4
from rollyard.tokens.tool_calls.harmony import Harmony
from rollyard.tokens.tool_calls.hermes import Hermes
from rollyard.tokens.tool_calls.llama import BareJson, Llama3
from rollyard.tokens.tool_calls.minimax_m3 import MiniMaxM3
from rollyard.tokens.tool_calls.mistral import Mistral
from rollyard.tokens.tool_calls.muse import Muse
from rollyard.tokens.tool_calls.plain_turn import NoCalls
from rollyard.tokens.tool_calls.python_calls import Olmo3, PythonCalls, Pythonic

ENTRY_POINTS = "rollyard.tool_parsers"


class NoParserFits(TaskError):
    """Raised if the chat template shows the calls of no family that has a parser."""

    ending = "NoParserFits"


@dataclass(frozen=True)
class Family:
    make: MakeParser
    marks: tuple[str, ...]
    """Texts in the chat templates of the parser's families and of no others: one of them identifies the parser."""


BUILT_IN: dict[str, Family] = {
    "harmony": Family(Harmony, ("<|channel|>",)),
    "mistral": Family(Mistral, ("[TOOL_CALLS]",)),
    "deepseek_dsml": Family(tag_families.DeepSeekDsml, ("｜DSML｜",)),
    "deepseek": Family(
        named_json.DeepSeek, ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁outputs▁begin｜>")
    ),
    "step3": Family(tag_families.Step3, ("steptml:",)),
    "hunyuan3": Family(tag_families.Hunyuan3, ("<arg_key{}>", "<arg_key:")),
    "glm": Family(tag_families.Glm, ("<arg_key>",)),
    "minimax_m3": Family(MiniMaxM3, ("]<]minimax[>[",)),
    "minimax_m2": Family(tag_families.MiniMaxM2, ("<minimax:tool_call>",)),
    "seed_oss": Family(tag_families.SeedOss, ("<seed:tool_call>",)),
    "qwen3_coder": Family(tag_families.Qwen3Coder, ("<parameter=",)),
    "muse": Family(Muse, ("<atem:invoke",)),
    "minicpm5": Family(tag_families.MiniCpm5, ("<param name=",)),
    "kimi_k2": Family(named_json.KimiK2, ("<|tool_call_begin|>",)),
    "kimi_k3": Family(tag_families.KimiK3, ("<|open|>",)),
    "solar": Family(named_json.Solar, ("<|tool_call:begin|>",)),
    "gemma4": Family(Gemma4, ("<|tool_call>",)),
    "functiongemma": Family(FunctionGemma, ("<start_function_call>",)),
    "cohere": Family(json_families.Cohere, ("<|START_ACTION|>",)),
    "command_r": Family(json_families.CommandR, ("Action:\\n```json", "Write \\'Action:\\'", "Write 'Action:'")),
    "apertus": Family(json_families.Apertus, ("<|tools_prefix|>",)),
    "nemotron_json": Family(json_families.NemotronJson, ("<TOOLCALL>",)),
    "apriel": Family(json_families.Apriel, (FINAL_RESPONSE,)),
    "tool_calls": Family(json_families.ToolCalls, ("<tool_calls>",)),
    "lfm2": Family(PythonCalls, ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: [")),
    "olmo3": Family(Olmo3, ("<function_calls>",)),
    "phi4_mini": Family(json_families.Phi4Mini, ("functools", "<|/tool|>")),
    "granite_functions": Family(json_families.GraniteFunctions, ("<function_call>",)),
    "granite": Family(json_families.Granite, ("<|tool_call|>",)),
    "internlm": Family(json_families.InternLm, ("<|action_start|>", "<|plugin|>")),
    "gigachat": Family(json_families.GigaChat, ("<|role_sep|>",)),
    "longcat": Family(json_families.LongCat, ("<longcat_tool_call>",)),
    "functionary_v3.2": Family(named_json.Functionary32, (">>>all",)),
    "functionary": Family(named_json.Functionary, ("<function=",)),
    "hermes": Family(Hermes, ("<tool_call>",)),
    "pythonic": Family(Pythonic, ("[func_name1(", "[func_name(")),
    "llama3_json": Family(
        Llama3,
        (
            "<|python_tag|>",
            "Environment: ipython",
            '{"name": function name, "parameters": dictionary of argument name and its value}',
        ),
    ),
    "xlam": Family(BareJson, ('[{"name": "tool_call_name"',)),
}
"""Name -> parser with its marks. For a template, the first entry with a mark in the template is chosen."""


def parser_for(template: ChatTemplate, name: str | None = None, tools: Sequence[dict[str, Any]] = ()) -> ToolCallParser:
    """Return the built-in or installed parser `name`; without a name, the parser that fits the template.

    `tools`: schemas of the offered tools. If there are none and no parser fits, the result reads no calls. Raises
    NoParserFits if there are tools and no name, and the template has no marks of a known family. Raises TaskError if the
    name is unknown or the installed parser cannot be created.
    """
    if name is None and (name := name_for(template.source)) is None:
        if not tools:
            return NoCalls()
        raise NoParserFits(
            "the chat template shows no form of tool calls that a parser of this node reads; name a parser "
            f"(`agent.tool_parser`): one of {', '.join(sorted(BUILT_IN))}, or one of your own"
        )
    if name in BUILT_IN:
        parser: ToolCallParser = BUILT_IN[name].make(tools)
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


def name_for(source: str) -> str | None:
    """Return the name of the parser whose marks a template's source has; None if there is none."""
    return next((name for name, family in BUILT_IN.items() if any(mark in source for mark in family.marks)), None)


def marks_of(parser: ToolCallParser) -> tuple[str, ...]:
    """Return the texts from which on a turn may not be shown before it is complete. An installed parser that has none
    (`marks`) may take any text for a call."""
    return (*getattr(parser, "marks", ("",)), *getattr(parser, "wrappers", ()), *getattr(parser, "held", ()))


def parsers_that_read(text: str, expected: Sequence[ToolCall], tools: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Return the names of the built-in parsers that read exactly these calls in the text of a turn."""
    return [name for name, family in BUILT_IN.items() if _reads(family, text, tuple(expected), tools)]


def _reads(family: Family, text: str, expected: tuple[ToolCall, ...], tools: Sequence[dict[str, Any]]) -> bool:
    turn = family.make(tools).parse(text)
    return turn.error is None and turn.calls == expected
