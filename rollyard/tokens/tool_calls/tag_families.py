"""Families that write each argument between tags of its own."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.tool_calls.argument_types import storable
from rollyard.tokens.tool_calls.base import MalformedCall
from rollyard.tokens.tool_calls.call_forms import tagged_calls
from rollyard.tokens.tool_calls.call_json import load
from rollyard.tokens.tool_calls.family_parser import THINK
from rollyard.tokens.tool_calls.tagged_arguments import TaggedArguments, Tags

CDATA = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)


def quoted_tag(tag: str) -> str:
    """Return the pattern of a tag with a name in quotes, which models leave out."""
    return rf"""<{tag}\s+name=["']?(?P<name>[^"'>\n]*)["']?\s*>"""


def quoted_tags(call: str, argument: str, **group: str) -> Tags:
    """Return tags with names in quotes. `group`: the fields of that name."""
    return Tags(quoted_tag(call), f"</{call}>", quoted_tag(argument), f"</{argument}>", **group)


class MarkedTypes(TaggedArguments):
    """Families whose arguments have an attribute that says whether a value is text or JSON."""

    @abstractmethod
    def is_text(self, argument: re.Match[str]) -> bool | None:
        """Return whether the attribute says that the value is text; None if the attribute is missing."""

    def value(self, tool: str, argument: re.Match[str], text: str) -> Any:
        is_text = self.is_text(argument)
        if is_text:
            return storable(argument["name"], text)
        if is_text is False:
            try:
                return load(text)
            except MalformedCall:
                pass  # the type that the tool declares decides
        return super().value(tool, argument, text)


class Qwen3Coder(TaggedArguments):
    """Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5."""

    form = (
        "Write <tool_call><function=NAME> and then <parameter=KEY>...</parameter> for each argument, "
        "and </function></tool_call>."
    )
    marks = ("<tool_call>", "<function=")
    begins, ends = "<function=NAME>", "</function>"
    trims = python = True
    tags = Tags(
        call=r"<function=(?P<name>[^>\n]*)>",
        call_ends="</function>",
        argument=r"<parameter=(?P<name>[^>\n]*)>",
        value_ends="</parameter>",
        group="<tool_call>",
        group_ends="</tool_call>",
    )

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        opening, closing = self.marks[0], self.tags.group_ends

        def begin(name: str) -> str:
            return f"{opening}\n<function={name}>\n"

        return tagged_calls(tools, begin, f"\n</function>\n{closing}", separator="\n", single=single, style="qwen_xml")


class SeedOss(Qwen3Coder):
    form = (
        "Write <seed:tool_call><function=NAME> and then <parameter=KEY>...</parameter> for each argument, "
        "and </function></seed:tool_call>."
    )
    marks = ("<seed:tool_call>", "<function=")
    trims = False
    thinks = (("<seed:think>", "</seed:think>"), *THINK)
    tags = replace(Qwen3Coder.tags, group="<seed:tool_call>", group_ends="</seed:tool_call>")


class MiniMaxM2(TaggedArguments):
    form = (
        'Write <minimax:tool_call><invoke name="NAME"> and then <parameter name="KEY">...</parameter> for each argument, '
        "and </invoke></minimax:tool_call>."
    )
    error_role = "user"
    marks = ("<minimax:tool_call>", "<invoke name=")
    begins, ends = '<invoke name="NAME">', "</invoke>"
    tags = quoted_tags("invoke", "parameter", group="<minimax:tool_call>", group_ends="</minimax:tool_call>")

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def begin(name: str) -> str:
            return f'<minimax:tool_call>\n<invoke name="{name}">\n'

        end = "</invoke>\n</minimax:tool_call>"
        return tagged_calls(tools, begin, end, separator="\n", single=single, style="minimax_xml")


class DeepSeekDsml(MarkedTypes):
    """DeepSeek V3.2 and V4. The attribute `string` says whether a value is text or JSON."""

    form = (
        'Write <｜DSML｜invoke name="NAME"> and then <｜DSML｜parameter name="KEY" string="true|false">...'
        "</｜DSML｜parameter> for each argument, and </｜DSML｜invoke>, inside the tags of tool calls."
    )
    marks = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=")
    begins, ends = '<｜DSML｜invoke name="NAME">', "</｜DSML｜invoke>"
    tags = Tags(
        call=quoted_tag("｜DSML｜invoke"),
        call_ends="</｜DSML｜invoke>",
        argument=r"""<｜DSML｜parameter\s+name="(?P<name>[^"\n]*)"(?:\s+string="(?P<string>true|false)")?\s*>""",
        value_ends="</｜DSML｜parameter>",
        group="<｜DSML｜(?:function_calls|tool_calls)>",
        group_ends="</｜DSML｜(?:function_calls|tool_calls)>",
    )

    def is_text(self, argument: re.Match[str]) -> bool | None:
        return {"true": True, "false": False}.get(argument["string"])


class MiniCpm5(TaggedArguments):
    form = 'Write <function name="NAME"> and then <param name="KEY">...</param> for each argument, and </function>.'
    marks = ("<function name=",)
    begins, ends = '<function name="NAME">', "</function>"
    python = True
    tags = quoted_tags("function", "param")

    def value(self, tool: str, argument: re.Match[str], text: str) -> Any:
        quoted = CDATA.fullmatch(text)
        return super().value(tool, argument, quoted[1] if quoted is not None else text)


class Step3(TaggedArguments):
    form = (
        'Write <｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME"> and then <steptml:parameter name="KEY">'
        "...</steptml:parameter> for each argument, and </steptml:invoke><｜tool_call_end｜>."
    )
    marks = ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke name=")
    begins, ends = '<steptml:invoke name="NAME">', "</steptml:invoke>"
    tags = quoted_tags(
        "steptml:invoke",
        "steptml:parameter",
        group="(?:<｜tool_calls_begin｜>\\s*)?<｜tool_call_begin｜>\\w*<｜tool_sep｜>",
        group_ends="<｜tool_call_end｜>(?:\\s*<｜tool_calls_end｜>)?",
    )


class KimiK3(MarkedTypes):
    form = (
        'Write <|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|> and then <|open|>argument key="KEY" '
        'type="TYPE"<|sep|>...<|close|>argument<|sep|> for each argument, and <|close|>call<|sep|><|close|>tools<|sep|>.'
    )
    error_role = "user"
    marks = ("<|open|>tools<|sep|>", "<|open|>call tool=")
    begins, ends = '<|open|>call tool="NAME"', "<|close|>call<|sep|>"
    thinks = (("<|open|>think<|sep|>", "<|close|>think<|sep|>"),)
    wrappers = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
    tags = Tags(
        call=r'<\|open\|>call tool="(?P<name>[^"\n]*)"[^<\n]*<\|sep\|>',
        call_ends=r"<\|close\|>call<\|sep\|>",
        argument=r'<\|open\|>argument key="(?P<name>[^"\n]*)"(?:\s+type="(?P<type>\w+)")?<\|sep\|>',
        value_ends=r"<\|close\|>argument<\|sep\|>",
        group=r"<\|open\|>tools<\|sep\|>",
        group_ends=r"<\|close\|>tools<\|sep\|>",
    )

    def is_text(self, argument: re.Match[str]) -> bool | None:
        return argument["type"] == "string" if argument["type"] is not None else None


class Glm(TaggedArguments):
    """GLM 4.5 to 5, Laguna, Ling 3, Spark 2.5."""

    form = "Write <tool_call>NAME<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>, with a pair for each argument."
    marks = ("<tool_call>",)
    begins, ends = "the name of the function", "</tool_call>"
    tags = Tags(
        call=r"<tool_call>\s*+(?P<name>[^\s<]++)(?=\s*+(?:<arg_key>|</tool_call>|\Z))",
        call_ends="</tool_call>",
        argument=r"<arg_key>(?P<name>[^<]*)(?:</arg_key>)?\s*+<arg_value>",
        value_ends="</arg_value>",
    )

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        return tagged_calls(
            tools, lambda name: f"<tool_call>{name}\n", "</tool_call>", separator="\n", single=single, style="glm_xml"
        )


class Hunyuan3(TaggedArguments):
    """Hy3. Its tags have a suffix (`<tool_call:opensource>`)."""

    form = (
        "Write <tool_calls:opensource><tool_call:opensource>NAME<tool_sep:opensource> and then <arg_key:opensource>KEY"
        "</arg_key:opensource><arg_value:opensource>...</arg_value:opensource> for each argument, and "
        "</tool_call:opensource></tool_calls:opensource>."
    )
    marks = ("<tool_calls:", "<tool_call:", "<tool_calls>", "<tool_call>")
    begins, ends = "<tool_call:opensource>NAME<tool_sep:opensource>", "</tool_call:opensource>"
    thinks = (("<think:opensource>", "</think:opensource>"), *THINK)
    tags = Tags(
        call=r"<tool_call(?::\w+)?>\s*+(?P<name>[^\s<]++)\s*+<tool_sep(?::\w+)?>",
        call_ends=r"</tool_call(?::\w+)?>",
        argument=r"<arg_key(?::\w+)?>(?P<name>[^<]*)(?:</arg_key(?::\w+)?>)?\s*+<arg_value(?::\w+)?>",
        value_ends=r"</arg_value(?::\w+)?>",
        group=r"<tool_calls(?::\w+)?>",
        group_ends=r"</tool_calls(?::\w+)?>",
    )
