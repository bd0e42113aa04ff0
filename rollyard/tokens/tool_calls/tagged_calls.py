"""Parser of calls between an opening and a closing tag. The form of the text in between depends on the model."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.tokens.sampled_turn import THINK_ENDS
from rollyard.tokens.tool_calls.base import MalformedCall, ParsedTurn, ToolCall


def parse_tagged(text: str, opening: str, closing: str, read: Callable[[str], ToolCall]) -> ParsedTurn:
    """Parse a turn. `read`: function that makes a call from the text between two tags, or raises MalformedCall."""
    thoughts, text = split_thoughts(text, opening, closing)
    content = [thoughts]
    calls: list[ToolCall] = []
    while True:
        before, opened, text = text.partition(opening)
        content.append(before)
        if not opened:
            return ParsedTurn("".join(content).strip(), tuple(calls))
        body, closed, text = text.partition(closing)
        try:
            if not closed:
                raise MalformedCall(f"the closing tag {closing} is missing")
            calls.append(read(body))
        except MalformedCall as error:
            return ParsedTurn("".join([*content, text]).strip(), tuple(calls), str(error))


def split_thoughts(text: str, opening: str, closing: str) -> tuple[str, str]:
    """Return (thoughts, remaining text). Calls inside the thoughts are ignored.

    The first part is empty if the text has no end marker of thoughts, or if the marker stands inside a call.
    """
    thoughts, ends, rest = text.partition(THINK_ENDS)
    if ends and thoughts.rfind(opening) <= thoughts.rfind(closing):
        return thoughts + ends, rest
    return "", text
