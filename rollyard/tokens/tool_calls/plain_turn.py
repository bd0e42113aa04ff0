"""Reads turns in which nothing counts as a call."""

from __future__ import annotations

from typing import Any

from rollyard.tokens.sampled_turn import CHANNEL, RECIPIENT
from rollyard.tokens.tool_calls.base import ParsedTurn
from rollyard.tokens.tool_calls.family_parser import THINK, FamilyParser
from rollyard.tokens.tool_calls.harmony import Harmony
from rollyard.tokens.tool_calls.named_json import Functionary32


class NoCalls(FamilyParser):
    """Parser of turns without tools, of any family."""

    form = "There are no tools."
    marks = ()
    thinks = (
        *THINK,
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        ("<|channel>thought", "<channel|>"),
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        ("<think:opensource>", "</think:opensource>"),
        ("◁think▷", "◁/think▷"),
    )

    def read(self, text: str, at: int) -> Any:
        raise AssertionError("without marks nothing begins a call")


def plain_turn(text: str, opened: str = "") -> ParsedTurn:
    """Read the thoughts and the answer of a turn in which nothing counts as a call. `opened`: `SampledTurn.opened`."""
    if opened == RECIPIENT:
        return Functionary32().plain(opened + text)
    return Harmony().plain(text) if CHANNEL in text else NoCalls().parse(opened + text)


def without_thoughts(content: str) -> str:
    """Return the content of a message without its thoughts. Thoughts that are not closed are all that there is to tell
    messages apart, so they stay."""
    closed = any(closing in content for _, closing in NoCalls.thinks)
    return plain_turn(content).content if closed else content
