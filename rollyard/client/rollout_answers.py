"""Parsing of the server's answers with trajectories, which are columns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

import aiohttp

from rollyard.kinds.base import evolve
from rollyard.kinds.batch import Group, GroupPage
from rollyard.kinds.rollout import RolloutView
from rollyard.wire.columns import Columns, decode
from rollyard.wire.frames import LENGTH_BYTES


def read_rollout(data: bytes) -> tuple[RolloutView, Columns | None]:
    """Return the rollout, and its trajectory if the rollout has ended. Raises ValueError."""
    columns = decode(data)
    return RolloutView.model_validate(columns.about["rollout"]), columns if len(columns) else None


def group_page(columns: Columns) -> GroupPage:
    """Return the page with Python lists instead of arrays. Raises ValueError."""
    rollouts = iter(columns.trajectories())
    groups = [
        evolve(Group.model_validate({**about, "rollouts": []}), rollouts=list(islice(rollouts, about["rollouts"])))
        for about in columns.about["groups"]
    ]
    return evolve(GroupPage.model_validate({**columns.about, "groups": []}), groups=groups)


async def read_stream(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, Columns | None]]:
    """Yield (cursor, columns) of each rollout that ended. A keep-alive gives a pair whose columns are None."""
    while True:
        try:
            length = int.from_bytes(await answer.content.readexactly(LENGTH_BYTES), "little")
            columns = decode(await answer.content.readexactly(length)) if length else None
        except asyncio.IncompleteReadError:
            return
        yield columns.about["cursor"] if columns is not None else 0, columns
