"""Agents that do given work: a model server with their turns, and their ways to change an instance's repository."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from rollyard.tokens.chat_template import ChatTemplate
from simulation.upstream import Upstream
from tests.support.scripted_engine import script_of
from tests.support.swe_instances.instance import Instance

MODEL_NAME = "scripted"


def call(tool: str, **arguments: Any) -> str:
    """Return the text of a tool call, as the tiny policy's template writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


@contextlib.asynccontextmanager
async def scripted_model(template: ChatTemplate, turns: Mapping[str, Sequence[str]]) -> AsyncIterator[Upstream]:
    """Serve a model with given turns for each conversation. The names of the conversations are texts of their prompts."""
    async with Upstream(script_of(template, turns), sizes=(256,), model=MODEL_NAME).serving() as upstream:
        yield upstream


def edits(one: Instance, place: str) -> list[str]:
    """Return calls that make the right change, one for each file, by the editor where it can."""
    found = []
    for name, (old, new) in one.made.sources.items():
        path = f"{place}/{name}"
        if new is None:
            found.append(call("bash", command=f"rm {path}"))
        elif old is None:
            found.append(call("editor", command="create", path=path, file_text=new))
        else:
            was, now = _difference(old, new)
            found.append(call("editor", command="str_replace", path=path, old_str=was, new_str=now))
    return found


def _difference(old: str, new: str) -> tuple[str, str]:
    """Return the lines of the old text that differ, with neighbours until they occur once, and what takes their place."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    while old.count("".join(before[start : len(before) - end])) != 1:
        start, end = max(0, start - 1), max(0, end - 1)
    return "".join(before[start : len(before) - end]), "".join(after[start : len(after) - end])


def _alike(first: list[str], second: list[str]) -> int:
    """Return the number of lines at the beginning that are the same."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))
