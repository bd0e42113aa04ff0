"""Parsing of the server's answers with trajectories, which are columns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from rollyard.kinds.rollout import RolloutView
from rollyard.trajectory.columns import Columns, decode
from rollyard.trajectory.frames import LENGTH_BYTES


def read_rollout(data: bytes) -> tuple[RolloutView, Columns | None]:
    """Return the rollout, and its trajectory if the rollout has ended. Raises ValueError."""
    columns = decode(data)
    return RolloutView.model_validate(columns.about["rollout"], extra="ignore"), columns if len(columns) else None


async def read_stream(answer: aiohttp.ClientResponse) -> AsyncGenerator[Columns | None]:
    """Yield rollouts that ended, one or more at a time. A keep-alive gives None."""
    while True:
        try:
            length = int.from_bytes(await answer.content.readexactly(LENGTH_BYTES), "little")
            columns = decode(await answer.content.readexactly(length)) if length else None
        except asyncio.IncompleteReadError:
            return
        yield columns
