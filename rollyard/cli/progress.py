"""Progress of rollouts: the number of rollouts in each state, and their reasons for waiting."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import click

from rollyard.cli.printable import printable
from rollyard.client.async_client import AsyncClient
from rollyard.core.aio import running
from rollyard.core.errors import RollyardError, Unavailable
from rollyard.kinds.base import Reason
from rollyard.kinds.rollout import IN_QUEUE, PARKED, PREPARING, RolloutView, Stage, Status
from rollyard.trajectory import Trajectory

POLL_SECONDS = 1.0
SAME_SECONDS = 30.0
"""Shortest time between two sentences about one reason for waiting, whose numbers and times change all the time."""
ON_THE_WAY = (Status.QUEUED.value, Status.RUNNING.value)


class ProgressLine:
    """Shows progress in one line of a terminal. If stderr is not a terminal, prints the most common reason for waiting
    when this reason changes."""

    def __init__(self, client: AsyncClient, namespace: str, pool: str, ids: Sequence[str]) -> None:
        self._client, self._namespace, self._pool = client, namespace, pool
        self._ids = frozenset(ids)
        self._reason, self._waiting = "", ""

    @contextlib.asynccontextmanager
    async def displayed(self) -> AsyncIterator[None]:
        """Show the line while the block runs."""
        async with running(self._update_terminal() if sys.stderr.isatty() else self._print_lines()):
            yield

    async def _update_terminal(self) -> None:
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            while True:
                with contextlib.suppress(RollyardError):
                    status.update(f"{await self._poll()}{f'  · {self._waiting}' if self._waiting else ''}")
                await asyncio.sleep(POLL_SECONDS)

    async def _print_lines(self) -> None:
        printed = ""
        while True:
            with contextlib.suppress(RollyardError):
                await self._poll()
            if self._reason != printed and self._waiting:
                click.echo(printable(self._waiting), err=True)
            printed = self._reason
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> str:
        counts, waiting = Counter[str](), list[Reason]()
        async for view in self._client.rollouts(self._namespace, pool=self._pool, status=ON_THE_WAY):
            if view.id in self._ids:
                counts["queued" if view.status is Status.QUEUED else str(view.stage)] += 1
                if view.waiting:
                    waiting.append(view.waiting)
        self._reason, self._waiting = most_common_reason(waiting)
        words = [f"{counts[word]} {word}" for word in ("queued", *(stage.value for stage in Stage)) if counts[word]]
        return ", ".join([*words, f"{len(self._ids) - counts.total()} of {len(self._ids)} ended"])


@contextlib.contextmanager
def counted_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call when one of `total` rollouts has ended. Its text is shown behind the number of those that have:
    in one line of a terminal, else in a line for each tenth."""
    ended = 0
    with contextlib.ExitStack() as stack:
        status = None
        if sys.stderr.isatty():
            from rich.console import Console

            status = stack.enter_context(Console(stderr=True).status(""))

        def one_more(text: str) -> None:
            nonlocal ended
            ended += 1
            line = printable(f"{ended} of {total} rollouts ended{f'; {text}' if text else ''}")
            if status is not None:
                status.update(line)
            elif ended * 10 // total > (ended - 1) * 10 // total:
                click.echo(line, err=True)

        yield one_more


def most_common_reason(waiting: Sequence[Reason]) -> tuple[str, str]:
    """Return a text that identifies the most common reason, and the line to print; two empty texts if nothing waits.

    The first text has no time and no position in the queue, so it changes only with the reason.
    """
    if not waiting:
        return "", ""
    ((word, count),) = Counter(reason.word for reason in waiting).most_common(1)
    first = str(next(reason for reason in waiting if reason.word == word))
    place = {PARKED: "in RUN", PREPARING: "in INIT"}.get(word, "queued")
    return word if word == IN_QUEUE else first.rpartition(" (since ")[0], f"{count} {place}: {first}"


async def follow_one(client: AsyncClient, namespace: str, id: str) -> Trajectory:
    """Wait for the end of a rollout, print its states, and return its trajectory."""
    lines, missed, loop = StateLines(), 0, asyncio.get_running_loop()
    while True:
        try:
            view, trajectory = await client.rollout(id, namespace, wait=0.3)
        except Unavailable as error:  # the server was unreachable for longer than the client retries
            missed += 1
            if missed == 1:
                click.echo(printable(f"rollout/{id}: {error}"), err=True)
            continue
        missed = 0
        if (line := lines.next(view, loop.time())) is not None:
            click.echo(line, err=True)
        if trajectory is not None:
            return trajectory


class StateLines:
    """Chooses which states of one rollout are printed: each that is new. The sentence about one reason for waiting is printed
    again if it has changed after SAME_SECONDS; a new position in the queue never is."""

    def __init__(self) -> None:
        self._state: tuple[str | None, ...] = ()
        self._said, self._at = "", 0.0

    def next(self, view: RolloutView, now: float) -> str | None:
        """`now`: in seconds, by any clock."""
        word = view.waiting.word if view.waiting is not None else None
        state, line = (view.status, view.stage, word), state_line(view)
        said = line.partition(" (since ")[0]
        if state == self._state and (word == IN_QUEUE or said == self._said or now - self._at < SAME_SECONDS):
            return None
        self._state, self._said, self._at = state, said, now
        return line


def state_line(view: RolloutView) -> str:
    stage = f" {view.stage.value}" if view.stage is not None else ""
    return printable(f"rollout/{view.id} {view.status.value}{stage}{f': {view.waiting}' if view.waiting else ''}")
