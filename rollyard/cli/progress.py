"""Rollouts followed until they end: how many are where, and what those that wait are waiting for."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import click

from rollyard.client.client import AsyncClient
from rollyard.client.link import beside
from rollyard.errors import RollyardError, Unavailable
from rollyard.kinds.rollout import RolloutView, Stage, Status, Trajectory

LOOK_SECONDS = 1.0
ON_THE_WAY = (Status.QUEUED.value, Status.RUNNING.value)


class Progress:
    """A line that is kept current on a terminal; elsewhere a line each time that the reason for waiting changes."""

    def __init__(self, client: AsyncClient, namespace: str, pool: str, ids: Sequence[str]) -> None:
        self._client, self._namespace, self._pool = client, namespace, pool
        self._ids = frozenset(ids)
        self._waiting = ""

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show it while the block runs."""
        async with beside(self._on_terminal() if sys.stderr.isatty() else self._in_lines()):
            yield

    async def _on_terminal(self) -> None:
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            while True:
                with contextlib.suppress(RollyardError):
                    status.update(f"{await self._look()}{f'  · {self._waiting}' if self._waiting else ''}")
                await asyncio.sleep(LOOK_SECONDS)

    async def _in_lines(self) -> None:
        said = ""
        while True:
            with contextlib.suppress(RollyardError):
                await self._look()
            reason = self._waiting.partition(": ")[2]  # without how many wait for it
            if reason and reason != said:
                click.echo(self._waiting, err=True)
                said = reason
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> str:
        counts, reasons = Counter[str](), Counter[str]()
        async for view in self._client.rollouts(self._namespace, pool=self._pool, status=ON_THE_WAY):
            if view.id in self._ids:
                counts["queued" if view.stage is None else view.stage.value] += 1
                if view.waiting:
                    reasons[view.waiting] += 1
        (reason, count), *_ = reasons.most_common(1) or [("", 0)]
        self._waiting = f"{count} queued: {reason}" if reason else ""
        words = [f"{counts[word]} {word}" for word in ("queued", *(stage.value for stage in Stage)) if counts[word]]
        return ", ".join([*words, f"{len(self._ids) - counts.total()} of {len(self._ids)} ended"])


async def follow_one(client: AsyncClient, namespace: str, id: str) -> Trajectory:
    """Wait for one rollout, with a line for each change of its state or of what it waits for."""
    said, missed = "", 0
    while True:
        try:
            view, trajectory = await client.rollout(id, namespace, wait=0.3)
        except Unavailable as error:  # a server that is away for longer than a call waits
            missed += 1
            said = _say(said, f"rollout/{id}: {error}" if missed == 1 else said)
            continue
        missed = 0
        said = _say(said, state_line(view))
        if trajectory is not None:
            return trajectory


def state_line(view: RolloutView) -> str:
    stage = f" {view.stage.value}" if view.stage is not None else ""
    return f"rollout/{view.id} {view.status.value}{stage}{f': {view.waiting}' if view.waiting else ''}"


def _say(said: str, now: str) -> str:
    if now != said:
        click.echo(now, err=True)
    return now
