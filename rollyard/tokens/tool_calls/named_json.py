"""Families that write the name of a tool between special tokens, and JSON arguments behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from rollyard.tokens.constraint import Form
from rollyard.tokens.sampled_turn import RECIPIENT
from rollyard.tokens.tool_calls.base import MalformedCall, NoCall, ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.call_forms import either, in_order, tagged_calls, text_form
from rollyard.tokens.tool_calls.call_json import arguments_of, load_at, skip_space
from rollyard.tokens.tool_calls.family_parser import NEVER, THINK, FamilyParser


class NamedJson(FamilyParser):
    """Parser of such a family."""

    begin: re.Pattern[str]
    """Beginning of a call, up to the JSON. Its group `name` is the tool's name, `id` (if there is one) the call's id."""
    end: re.Pattern[str]
    """End of a call."""
    needs_end = True
    """Whether something else than `end` behind the JSON is an error."""
    group = group_ends = re.compile(r"(?!)")
    """Marks around one or more calls."""
    begins: str
    """Beginning of a call, in messages."""
    closing: str
    """End of a call, in messages."""

    @cached_property
    def remains(self) -> re.Pattern[str]:  # type: ignore[override]
        return re.compile(rf"\}}\s*(?:```\s*)?{re.escape(self.closing)}" if self.closing else NEVER)

    def read(self, text: str, at: int) -> Iterator[ToolCall | int]:
        group = self.group.match(text, at)
        at = skip_space(text, group.end()) if group is not None else at
        if group is not None and (closing := self.group_ends.match(text, at)) is not None:
            raise MalformedCall(f"between {group[0]} and {closing[0]} stands no call")
        begin = self.begin.match(text, at)
        if begin is None:
            raise NoCall(f"{self.begins} is missing")
        while begin is not None:
            try:
                arguments, at = self.arguments(text, begin.end())
            except MalformedCall:
                if self.closing and self.closing not in text[begin.end() :]:
                    raise MalformedCall(f"the closing tag {self.closing} is missing") from None
                raise
            end = self.end.match(text, at)
            if end is not None:
                at = end.end()
            elif self.needs_end and text[at:].strip() and not self.group_ends.match(text, skip_space(text, at)):
                raise MalformedCall(f"something else stands behind the JSON object: {text[at : at + 40]!r}")
            yield self.call(begin, arguments_of(arguments))
            yield at
            begin = self.begin.match(text, skip_space(text, at)) if group is not None else None
        if (closing := self.group_ends.match(text, skip_space(text, at))) is not None:
            yield closing.end()

    def arguments(self, text: str, at: int) -> tuple[Any, int]:
        """Read the arguments at a position. Return them and the position behind them. Raises MalformedCall."""
        return load_at(text, at)

    def call(self, begin: re.Match[str], arguments: dict[str, Any]) -> ToolCall:
        name = begin["name"].strip()
        if not name:
            raise MalformedCall("the name is missing")
        return ToolCall(name, arguments, begin.groupdict().get("id"))


class KimiK2(NamedJson):
    """Kimi K2 and K2.5. The id of a call holds the tool's name: `functions.get:0`."""

    form = (
        "Write <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}"
        "<|tool_call_end|><|tool_calls_section_end|> with one JSON object of arguments for each call."
    )
    error_role = "user"
    marks = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
    thinks = (*THINK, ("◁think▷", "◁/think▷"))
    begins, closing = "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
    begin = re.compile(
        r"<\|tool_call_begin\|>\s*+(?P<id>(?:functions\.)?+(?P<name>[^\s<:][^\s<]*?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"
    )
    end = re.compile(r"\s*<\|tool_call_end\|>")
    group = re.compile(r"<\|tool_calls?_section_begin\|>")
    group_ends = re.compile(r"<\|tool_calls?_section_end\|>")


class Solar(NamedJson):
    """Solar Open."""

    form = "Write <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}<|tool_call:end|>."
    error_role = "user"
    marks = ("<|tool_calls|>", "<|tool_call:begin|>")
    thinks = (("<|think|>", "<|end|>"), *THINK)
    wrappers = ("<|begin|>assistant", "<|content|>")
    begins, closing = "<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>", "<|tool_call:end|>"
    begin = re.compile(r"<\|tool_call:begin\|>(?P<id>[^<\n]*)<\|tool_call:name\|>(?P<name>[^<\n]*)<\|tool_call:args\|>")
    end = re.compile(r"\s*<\|tool_call:end\|>")
    group = re.compile(r"<\|tool_calls\|>")
    group_ends = re.compile(r"<\|calls\|>")


class Functionary(NamedJson):
    """Functionary 3.1 and Llama 3.1 with `<function=get>{…}</function>`."""

    form = "Write <function=NAME>{...}</function> with one JSON object of arguments for each call."
    marks = ("<function=",)
    begins, closing = "<function=NAME>{...}", "</function>"
    begin = re.compile(r"<function=(?P<name>[^>\n]*)>")
    end = re.compile(r"\s*</function>")

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        return tagged_calls(tools, lambda name: f"<function={name}>", "</function>", single=single)


class Functionary32(NamedJson):
    """Functionary 3.2: `>>>get` and a line with the arguments. The answer stands behind `>>>all`."""

    form = "Write >>>NAME, and behind it on a new line one JSON object of arguments, for each call."
    marks = (RECIPIENT,)
    bare = True
    wrappers, held = (">>>all\n",), ("",)  # the prompt has the first `>>>`, so that the turn begins with a name
    begins, closing = ">>>NAME", ""
    begin = re.compile(r">>>(?P<name>[\w.-]+)\n(?=\s*\{)")
    end = re.compile(r"\s*(?=>>>|\Z)")

    def parse(self, text: str) -> ParsedTurn:
        return super().parse(text.removesuffix(RECIPIENT))  # a turn may end before it has a recipient

    def plain(self, text: str) -> ParsedTurn:
        return super().plain(text.removesuffix(RECIPIENT))


class DeepSeek(NamedJson):
    """DeepSeek R1, V3 (arguments in a code fence) and V3.1 (bare arguments)."""

    form = (
        "Write <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜> "
        "with one JSON object of arguments for each call."
    )
    marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    begins, closing = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    begin = re.compile(
        r"<｜tool▁call▁begin｜>(?:[^<]*<｜tool▁sep｜>(?P<fenced>[^\n`{]*)\s*+```(?:json)?|(?P<bare>[^<]*)<｜tool▁sep｜>)"
    )
    end = re.compile(r"\s*(?:```)?\s*<｜tool▁call▁end｜>")
    group = re.compile(r"<｜tool▁calls▁begin｜>")
    group_ends = re.compile(r"<｜tool▁calls▁end｜>")

    def call(self, begin: re.Match[str], arguments: dict[str, Any]) -> ToolCall:
        name = (begin["bare"] if begin["fenced"] is None else begin["fenced"]).strip()
        if not name:
            raise MalformedCall("the name is missing")
        return ToolCall(name, arguments)

    def calls_form(self, tools: Sequence[dict[str, Any]], *, single: bool) -> Form:
        def fenced(name: str) -> str:
            return f"{self.marks[1]}function<｜tool▁sep｜>{name}\n```json\n"

        v3 = tagged_calls(tools, fenced, f"\n```{self.closing}", separator="\n", single=single)
        v3_1 = tagged_calls(tools, lambda name: f"{self.marks[1]}{name}<｜tool▁sep｜>", self.closing, single=single)
        return in_order(text_form(self.marks[0]), either(v3, v3_1), text_form("<｜tool▁calls▁end｜>"))
