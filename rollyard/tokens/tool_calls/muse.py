"""Calls of Muse Glimmer. A turn is a series of messages: to `self` (thoughts), to `user` (the answer), or to a tool (a call
with each argument between tags of its own)."""

from __future__ import annotations

import re

from rollyard.tokens.tool_calls.base import ParsedTurn, ToolCall
from rollyard.tokens.tool_calls.tag_families import quoted_tags
from rollyard.tokens.tool_calls.tagged_arguments import TaggedArguments

# A run of blanks is tried only from its beginning; the search would else take a time quadratic in the run's length.
HEADER = re.compile(r"(?:<\|start\|>\s*assistant)?(?:(?<![ \t])[ \t]++)?(?:to=(?P<to>[\w.\-]++))?<\|message\|>")
MESSAGE_ENDS = re.compile(r"<\|(?:eom|eot)\|>|(?=<\|start\|>)|\Z")


class Muse(TaggedArguments):
    form = (
        'Write to=NAME<|message|><atem:function_calls><atem:invoke name="NAME"> and then <atem:parameter name="KEY">...'
        "</atem:parameter> for each argument, and </atem:invoke></atem:function_calls>."
    )
    error_role = "user"
    marks = ("<atem:function_calls>", "<atem:invoke", "<|message|>", " to=", "<|start|>")
    begins, ends = '<atem:invoke name="NAME">', "</atem:invoke>"
    tags = quoted_tags(
        "atem:invoke",
        "atem:parameter",
        group="<atem:function_calls>",
        group_ends=r"</atem:function_calls>|<\|eom\|>",
    )

    def parse(self, text: str) -> ParsedTurn:
        content: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        at, last = 0, text.rfind("<|message|>")
        while at < len(text):
            header = HEADER.match(text, at)
            if header is None and at <= last and (later := HEADER.search(text, at)) is not None:
                content.append(MESSAGE_ENDS.sub("", text[at : later.start()]))  # text in front of a header
                at = later.start()
                continue
            body = header.end() if header is not None else at
            to = header["to"] if header is not None else None
            if to in (None, "self", "user"):
                end = MESSAGE_ENDS.search(text, body + (header is None))
                assert end is not None
                (thoughts if to == "self" else content).append(text[body : end.start()])
                at = max(end.end(), at + 1)
                continue
            body += len(text[body:]) - len(text[body:].lstrip())
            found, end_at, error = self.calls_at(text, body)
            calls += found
            if error is not None:
                content.append(text[at:])
                return ParsedTurn("".join(content).strip(), tuple(calls), str(error), _joined(thoughts))
            end = MESSAGE_ENDS.search(text, end_at)
            assert end is not None
            at = max(end.end(), at + 1)
        return ParsedTurn("".join(content).strip(), tuple(calls), None, _joined(thoughts))


def _joined(thoughts: list[str]) -> str | None:
    return "\n\n".join(thoughts).strip() if thoughts else None
