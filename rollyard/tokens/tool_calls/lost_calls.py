"""Finds calls in an answer: an offered tool's call in another family's form, or a call whose beginning is missing.

Without this search such a turn would count as the model's last answer, and the call would be lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from rollyard.tokens.tool_calls.base import MalformedCall
from rollyard.tokens.tool_calls.call_json import ARGUMENTS, load_at

FOREIGN = "the call of {} is not in the form of this model"
MAX_TRIES = 32
"""Greatest number of places in an answer at which a call is sought."""
NAMES = ("name", "tool_name")
OBJECT = re.compile(rf'\{{\s*"(?:{"|".join(NAMES + ARGUMENTS)})"\s*:')
KEYS = {"type", "id", *NAMES, *ARGUMENTS}
TAG = re.compile(
    r"""<(?:[|｜]DSML[|｜])?(?:function|invoke)(?:=|\s+name\s*=)\s*["']?([\w.\-]+)["']?\s*>"""
    r"|<tool_call>\s*([\w.\-]+)\s*<arg_key>"
    r"|<[|｜]tool[_▁]call[_▁]begin[|｜]>(?:function<[|｜]tool[_▁]sep[|｜]>)?([\w.\-]+)"
)
TAG_ENDS = ("function>", "invoke>", "</tool_call>", "call▁end｜>", "call_end|>")
# Possessive quantifiers prevent backtracking in long white space.
BARE = re.compile(
    r"(?:```\w*+\s*+)?+\[?+\s*+(?:functions\.|call:)?+([\w.\-]++)(?::\d++)?+[({].*[)}]\s*+\]?+\s*+(?:```)?+", re.DOTALL
)
"""A whole answer of the shape `[get(path="a")]`, `call:get{…}` or `functions.get:0{…}`."""


def lost_call(answer: str, tools: Collection[str]) -> str | None:
    """Return the name of the first of the offered tools that an answer calls; None if it calls none."""
    return next((name for name in _called(answer) if name in tools), None)


def _called(answer: str) -> Iterator[str]:
    for begin in islice(OBJECT.finditer(answer), MAX_TRIES):
        try:
            value, _ = load_at(answer, begin.start())
        except MalformedCall:
            continue
        if KEYS.issuperset(value) and any(isinstance(value.get(key), dict) for key in ARGUMENTS):
            yield from (value[key] for key in NAMES if isinstance(value.get(key), str))
    if any(end in answer for end in TAG_ENDS):
        yield from (found[found.lastindex or 0] for found in islice(TAG.finditer(answer), MAX_TRIES))
    if (whole := BARE.fullmatch(answer.strip())) is not None:
        yield whole[1]
