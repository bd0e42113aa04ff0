"""Parsing of the server's answers with trajectories: columns, or JSON from an older server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import islice

import aiohttp

from rollyard.client.server_connection import lines
from rollyard.kinds.base import evolve
from rollyard.kinds.batch import Group, GroupPage
from rollyard.kinds.rollout import RolloutView, Trajectory
from rollyard.wire.columns import CONTENT_TYPE, Columns, columns_of, decode
from rollyard.wire.frames import LENGTH_BYTES

ACCEPT = f"{CONTENT_TYPE}, */*;q=0.5"
"""`Accept` header for columns. An older server answers in JSON."""


def read_rollout(content_type: str, data: bytes) -> tuple[RolloutView, Columns | None]:
    """Return the rollout, and its trajectory if the rollout has ended. Raises ValueError."""
    if content_type == CONTENT_TYPE:
        columns = decode(data)
        return RolloutView.model_validate(columns.about["rollout"]), columns if len(columns) else None
    body = json.loads(data)
    found = body["trajectory"]
    view = RolloutView.model_validate(body["rollout"])
    return view, columns_of([Trajectory.model_validate(found)]) if found is not None else None


def read_groups(content_type: str, data: bytes) -> Columns:
    """Return a page of groups. Raises ValueError."""
    if content_type == CONTENT_TYPE:
        return decode(data)
    page = GroupPage.model_validate_json(data)
    groups = [{**dict(group), "rollouts": len(group.rollouts)} for group in page.groups]
    about = {"groups": groups, "next": page.next, "batch": page.batch.model_dump(mode="json")}
    return columns_of([rollout for group in page.groups for rollout in group.rollouts], about)


def group_page(columns: Columns) -> GroupPage:
    """Return the page with Python lists instead of arrays. Raises ValueError."""
    rollouts = iter(columns.trajectories())
    groups = [
        evolve(Group.model_validate({**about, "rollouts": []}), rollouts=list(islice(rollouts, about["rollouts"])))
        for about in columns.about["groups"]
    ]
    return evolve(GroupPage.model_validate({**columns.about, "groups": []}), groups=groups)


def read_stream(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, Columns | None]]:
    """Yield (cursor, columns) of each rollout that ended. Data without a rollout, such as a keep-alive, gives a pair
    whose columns are None."""
    return _files(answer) if answer.content_type == CONTENT_TYPE else _events(answer)


async def _files(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, Columns | None]]:
    while True:
        try:
            length = int.from_bytes(await answer.content.readexactly(LENGTH_BYTES), "little")
            columns = decode(await answer.content.readexactly(length)) if length else None
        except asyncio.IncompleteReadError:
            return
        yield columns.about["cursor"] if columns is not None else 0, columns


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, Columns | None]]:
    cursor = 0
    async for line in lines(answer):
        if line.startswith(b"id: "):
            cursor = int(line[4:])
        data = line.startswith(b"data: ")
        yield cursor, columns_of([Trajectory.model_validate_json(line[6:])]) if data else None
