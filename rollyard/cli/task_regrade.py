"""`rollyard tasks regrade`: old results, scored again by the present evaluator."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.progress import counted_progress
from rollyard.cli.rollout_requests import read_task
from rollyard.cli.written_file import write_lines
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import RollyardError
from rollyard.kinds.rollout import CHECK, RolloutRequest, RolloutView, Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Trajectory

MAX_ID_CHARS = 128
ENDED = [status.value for status in Status if status.scored or status is Status.FAILED]


@click.command()
@click.argument("ids", nargs=-1)
@click.option("--pool", help="the ended rollouts of this pool")
@click.option("--group", help="the ended rollouts of this group")
@click.option("--prefix", default="", help="only rollouts whose ids begin with it")
@click.option(
    "--task", help="task with another evaluator, as JSON or a JSON file, for all chosen rollouts  [default: their own]"
)
@click.option(
    "--name", help="name of the regrade. The same name goes on with an interrupted one  [default: a new name]"
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="rewards, a file of JSON lines")
@with_client
async def regrade(
    client: AsyncClient,
    namespace: str,
    ids: tuple[str, ...],
    pool: str | None,
    group: str | None,
    prefix: str,
    task: str | None,
    name: str | None,
    output: Path | None,
) -> None:
    """Score the stored artifacts of ended rollouts again, and show what changes.

    Each artifact is scored in a new rollout, which begins at EVAL. The old rollout stays as it is. Exit code 1 if a rollout
    cannot be scored again.
    """
    if not (ids or pool or group or prefix):
        raise click.UsageError("name rollouts by id, or choose ended ones by --pool, --group or --prefix")
    name = name or f"regrade-{secrets.token_hex(4)}"
    views = [(await client.rollout(id, namespace))[0] for id in ids]
    if pool or group or prefix:
        found = client.rollouts(namespace, pool=pool, group=group, status=ENDED)
        views += [view async for view in found if view.id.startswith(prefix) and view.mode != CHECK]
    old = {_new_id(name, view.id): view for view in views if view.status.terminal and view.artifact == "Kept"}
    if gone := [view.id for view in views if _new_id(name, view.id) not in old]:
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        click.echo(f"not ended, or without a stored artifact, so left out: {', '.join(gone[:3])}{more}", err=True)
    if not old:
        raise RollyardError("no chosen rollout has ended and still has its artifact")
    click.echo(f"regrade {name}: {len(old)} rollouts. To go on after an interruption: --name {name}", err=True)
    given = None if task is None else read_task(task, {"pool": "any"}).task
    requests = [await _request(client, namespace, id, view, given) for id, view in old.items()]
    new: dict[str, Trajectory] = {}
    with counted_progress(len(old)) as progress:
        async for trajectory in client.run_all(requests, namespace):
            new[trajectory.id] = trajectory
            progress("")
    pairs = [(view, new[id]) for id, view in old.items()]
    write_lines(output, (json.dumps(_line(*pair)) for pair in pairs))
    click.echo(printable("\n".join(_table(pairs))))
    if gone or not all(trajectory.status.scored for trajectory in new.values()):
        sys.exit(1)


def _new_id(name: str, old: str) -> str:
    """Return the id of the rollout that scores `old` again. It follows from the two names."""
    id = f"{name}.{old}"
    return id if len(id) <= MAX_ID_CHARS else f"{name}.{hashlib.sha256(old.encode()).hexdigest()[:32]}"


async def _request(
    client: AsyncClient, namespace: str, id: str, old: RolloutView, given: Task | None
) -> RolloutRequest:
    task = given
    if task is None:
        _, trajectory = await client.rollout(old.id, namespace)
        assert trajectory is not None
        task = trajectory.task
    return RolloutRequest(id=id, pool=old.pool, task=task, mode=CHECK, regrade_of=old.id)


def _change(old: float | None, new: float | None) -> str:
    if old == new:
        return "same"
    if old is None or new is None:
        return "lost" if new is None else "gained"
    return "up" if new > old else "down"


def _line(old: RolloutView, new: Trajectory) -> dict[str, object]:
    return {
        "rollout": old.id,
        "old": old.reward,
        "regraded": new.id,
        "new": new.reward,
        "change": _change(old.reward, new.reward),
        "notes": list(new.notes),
        "error": new.error.model_dump(mode="json") if new.error else None,
    }


def _table(pairs: Sequence[tuple[RolloutView, Trajectory]]) -> list[str]:
    """Return a line for each reward that has changed, and the numbers of changes."""
    rows = [["ROLLOUT", "OLD", "NEW", "CHANGE", "WHY"]]
    changes = Counter[str]()
    for old, new in pairs:
        change = _change(old.reward, new.reward)
        changes[change] += 1
        if change != "same":
            why = f"{new.error.reason}: {new.error.message}" if new.error else "; ".join(new.notes)
            rows.append([old.id, _number(old.reward), _number(new.reward), change, " ".join(why.split())[:160]])
    counts = ", ".join(f"{changes[word]} {word}" for word in ("same", "up", "down", "gained", "lost") if changes[word])
    means = f"mean reward {_mean([old.reward for old, _ in pairs])} -> {_mean([new.reward for _, new in pairs])}"
    return [*(align(rows) if len(rows) > 1 else []), f"{len(pairs)} rollouts: {counts}; {means}"]


def _number(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:g}"


def _mean(rewards: Sequence[float | None]) -> str:
    known = [reward for reward in rewards if reward is not None]
    return f"{sum(known) / len(known):.3f}" if known else "-"
