"""Profile of a rollout, from its turns. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from rollyard.kinds.base import evolve
from rollyard.kinds.rollout_profile import (
    MAX_TOOLS,
    OTHER,
    UNREADABLE,
    RolloutProfile,
    TokenParts,
    ToolUse,
    TurnBand,
    band_of,
    merged,
)
from rollyard.tokens.sampled_turn import CLOSED, OPENS
from rollyard.trajectory import Turn

MAX_NAME = 64
_OPENS = re.compile(rf"\s*(?:{OPENS})")
_CALL = re.compile(
    r"<\|?channel\|?>commentary|\[TOOL_CALLS\]|[<\[{(>`]+\W*\w*(?:tool|function|call|python|invoke|name)", re.IGNORECASE
)
"""Beginning of a call, in the formats of the model families."""


def profile_of(turns: Sequence[Turn]) -> RolloutProfile:
    """Return where the seconds and the tokens of these turns went."""
    tokens, tools, bands = defaultdict[str, int](int), dict[str, ToolUse](), list[TurnBand]()
    ends, last = dict[int, int](), dict[int, Turn]()
    for number, turn in enumerate(turns, start=1):
        before, end = last.get(turn.segment), ends.get(turn.segment)
        if end is None:
            end = min(turn.prompt_length, max(ends.values(), default=0))  # a break: the earlier tokens are read again
            tokens["repeated"] += end
            before = turns[number - 2] if number > 1 else None
        read = max(0, turn.prompt_length - end)
        _add_read(tokens, tools, before, read)
        for part, count in _sampled(turn).items():
            tokens[part] += count
        _add_calls(tools, turn)
        band = TurnBand(turns=1, read=read, sampled=turn.response_length, context=turn.prompt_length)
        bands = merged(bands, [TurnBand()] * band_of(number) + [band])
        ends[turn.segment], last[turn.segment] = turn.prompt_length + turn.response_length, turn
    return RolloutProfile(
        **{of: round(sum(t.timings.get(of, 0.0) for t in turns), 3) for of in ("model", "tools", "environment")},
        tokens=TokenParts(**tokens),
        by_tool=_bounded(tools),
        bands=bands,
    )


def _add_read(tokens: defaultdict[str, int], tools: dict[str, ToolUse], before: Turn | None, read: int) -> None:
    """Add tokens that were new in a prompt: the first prompt, or what followed the turn before."""
    if before is None:
        tokens["prompt"] += read
        return
    texts = [*before.tool_results, before.observation or ""]
    *of_calls, of_environment = _shares(read, [len(text) for text in texts])
    if not before.tool_results:
        of_environment = read
    tokens["environment"] += of_environment
    for place, count in enumerate(of_calls):
        tokens["outputs"] += count
        _add(tools, ToolUse(tool=_name(before, place), tokens=count))


def _sampled(turn: Turn) -> dict[str, int]:
    """Divide the sampled tokens of a turn by the length of its texts."""
    text, closed = turn.text, CLOSED.search(turn.text)
    after = closed.end() if closed is not None else len(text) if _OPENS.match(text) else 0
    called = _CALL.search(text, after) if turn.tool_calls else None
    begin = called.start() if called is not None else after if turn.tool_calls else len(text)
    thoughts, answers, calls = _shares(turn.response_length, [after, begin - after, len(text) - begin])
    return {"thoughts": thoughts, "answers": answers, "calls": calls}


def _shares(count: int, lengths: Sequence[int]) -> list[int]:
    """Divide a number of tokens by the lengths of texts. Without any text all belong to the first."""
    whole = sum(lengths)
    if not whole:
        return [count, *[0] * (len(lengths) - 1)]
    edges = [round(count * sum(lengths[:i]) / whole) for i in range(len(lengths) + 1)]
    return [end - begin for begin, end in pairwise(edges)]


def _add_calls(tools: dict[str, ToolUse], turn: Turn) -> None:
    unreadable = turn.failed_calls is not None and len(turn.tool_calls) in turn.failed_calls
    for place in range(len(turn.tool_calls) + unreadable):
        judged = turn.failed_calls is not None
        failed = turn.failed_calls is not None and place in turn.failed_calls
        _add(tools, ToolUse(tool=_name(turn, place), calls=1, judged=judged, failed=failed))


def _name(turn: Turn, place: int) -> str:
    """Return the name of the tool of a turn's call."""
    if place >= len(turn.tool_calls):
        return UNREADABLE
    return str(turn.tool_calls[place].get("name", UNREADABLE))[:MAX_NAME]


def _add(tools: dict[str, ToolUse], use: ToolUse) -> None:
    tools[use.tool] = tools[use.tool].plus(use) if use.tool in tools else use


def _bounded(tools: dict[str, ToolUse]) -> list[ToolUse]:
    """Keep the tools with the most calls by their names, and add the others up."""
    by_calls = sorted(tools.values(), key=lambda use: -use.calls)
    kept = {use.tool: use for use in by_calls[:MAX_TOOLS]}
    for use in by_calls[MAX_TOOLS:]:
        _add(kept, evolve(use, tool=OTHER))
    return list(kept.values())
