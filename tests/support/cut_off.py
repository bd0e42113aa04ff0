"""Calls of a tool that reach their timeout after the command has begun, also where that takes long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollyard.sandbox.base import CellResult, CommandResult

R = TypeVar("R", CommandResult, CellResult)


async def cut_off(call: Callable[[str, float], Awaitable[R]], text: str, mark: str = "begun") -> R:
    """Return the result of the first call whose output has the mark at its timeout."""
    for seconds in (0.3, 3.0, 30.0):
        result = await call(text, seconds)
        if mark in result.output:
            return result
    raise AssertionError(f"it does not begin: {result}")
