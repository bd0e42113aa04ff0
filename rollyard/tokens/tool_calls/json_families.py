"""Families that write calls as JSON with marks of their own."""

from __future__ import annotations

from typing import Any

from rollyard.tokens.sampled_turn import FINAL_RESPONSE
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_json import arguments_of
from rollyard.tokens.tool_calls.family_parser import THINK, FamilyParser
from rollyard.tokens.tool_calls.json_calls import JsonCalls
from rollyard.tokens.tool_calls.llama import LOOKS, BareJson


class ToolCalls(JsonCalls):
    """Hunyuan, Jamba (a list), MiniMax-M1 (an object a line)."""

    marks = ("<tool_calls>",)
    closing = "</tool_calls>"
    in_list = True


class Apriel(ToolCalls):
    """Apriel. Lines of prose stand around its thoughts; the prompt of Apriel 1.6 has the first one."""

    thinks = (("Here are my reasoning steps:", FINAL_RESPONSE), *THINK)
    wrappers = ("[END FINAL RESPONSE]",)


class NemotronJson(JsonCalls):
    """Nemotron Nano 2 and Llama-Nemotron."""

    marks = ("<TOOLCALL>",)
    closing = "</TOOLCALL>"
    in_list = True


class Granite(JsonCalls):
    """Granite 3.x. Granite 4 writes the form Hermes."""

    marks = ("<|tool_call|>", "<tool_call>")
    in_list = True
    wrappers = ("<response>", "</response>")


class GraniteFunctions(JsonCalls):
    """Granite 20B function calling."""

    marks = ("<function_call>",)


class Phi4Mini(JsonCalls):
    """Phi-4-mini and FireFunction."""

    marks = ("<|tool_call|>", "functools[")
    closing = "<|/tool_call|>"
    in_list = True
    held = ("{", "[")

    def parse(self, text: str) -> ParsedTurn:
        if LOOKS.match(text.lstrip()):  # vLLM's template writes calls without a mark
            bare = BareJson(self.tools).parse(text)
            if bare.calls or bare.error is not None:
                return bare
        return super().parse(text)


class InternLm(JsonCalls):
    marks = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")
    closing = "<|action_end|>"


class Cohere(JsonCalls):
    """Command A and Command R7B."""

    error_role = "user"
    marks = ("<|START_ACTION|>",)
    closing = "<|END_ACTION|>"
    names, keys = ("tool_name", "name"), ("parameters", "arguments")
    in_list = True
    thinks = (("<|START_THINKING|>", "<|END_THINKING|>"), *THINK)
    wrappers = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


class CommandR(JsonCalls):
    """Command R and R+: `Action:` and a list in a code fence."""

    marks = ("Action:",)
    names, keys = ("tool_name", "name"), ("parameters", "arguments")
    in_list = bare = True


class GigaChat(JsonCalls):
    marks = ("<|function_call|>", "function call<|role_sep|>")
    wrappers = ("<|message_sep|>\n\n",)


class LongCat(JsonCalls):
    marks = ("<longcat_tool_call>",)
    closing = "</longcat_tool_call>"
    thinks = (("<longcat_think>", "</longcat_think>"), *THINK)


class Apertus(JsonCalls):
    """Objects whose only key is the tool's name: `[{"get": {"path": "a"}}]`."""

    form = 'Write <|tools_prefix|>[{"NAME": {...}}]<|tools_suffix|> with one JSON object for each call.'
    marks = ("<|tools_prefix|>",)
    closing = "<|tools_suffix|>"
    thinks = (("<|inner_prefix|>", "<|inner_suffix|>"), *THINK)

    def call(self, value: Any) -> ToolCall:
        if not isinstance(value, dict) or len(value) != 1:
            raise MalformedCall(
                'each call must be an object with the name of the tool as its only key: {"NAME": {...}}'
            )
        ((name, arguments),) = value.items()
        return ToolCall(name, arguments_of(arguments, name))

    calls_form = FamilyParser.calls_form
