"""Commands on rollouts: submit, rollouts get|cancel|describe, try. `rollout_lists.py` has list, top, summary and losses,
`rollout_profile.py` has profile."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from rollyard.cli.only_checked import Chosen, only_checked
from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.parameter_types import DURATION
from rollyard.cli.printable import printable
from rollyard.cli.progress import ProgressLine, follow_one
from rollyard.cli.rollout_history import history_lines
from rollyard.cli.rollout_lists import cell, list_, losses, summary, top
from rollyard.cli.rollout_profile import profile
from rollyard.cli.rollout_requests import given_image, read_task, read_tasks, sampling_of, submit_batches
from rollyard.cli.rollout_tokens import tokens
from rollyard.cli.rollout_turns import break_counts, break_lines, call_lines, result_lines
from rollyard.cli.snapshot_lines import snapshot_lines
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import RollyardError
from rollyard.kinds.rollout import ID_PATTERN, RolloutRequest, Status
from rollyard.trajectory import Trajectory

DESCRIBED = ["ID", "POOL", "KIND", "STATUS", "STAGE", "ATTEMPT", "REWARD", "REASON"]
ON_THE_WAY = [status.value for status in Status if not status.terminal]


@click.command()
@click.option(
    "-f", "--filename", "file", required=True, help="file of JSON lines with one task a line; - for standard input"
)
@click.option("--pool", required=True, help="RolloutPool to run in")
@click.option("--n", default=1, type=click.IntRange(1, 1024), help="rollouts of each task")
@click.option("--temperature", type=float, help="sampling temperature; 0 is greedy  [default: 1]")
@click.option(
    "--sampling", multiple=True, metavar="NAME=VALUE", help="further sampling parameter, such as max_tokens=512"
)
@click.option(
    "--image",
    help="sandbox image of the tasks that name none: docker://HOST/NAME:TAG, or a path on the nodes  "
    "[default: the image of the pool]",
)
@only_checked
@click.option(
    "--id-prefix",
    default="",
    help="ids are <prefix>-<line>, or <prefix>-<line>.<sample> with --n above 1. Submitting the file again with the same "
    "prefix attaches to the same rollouts  [default: a new prefix]",
)
@click.option(
    "--keep-failed",
    type=DURATION,
    help="keep the sandbox of a failed attempt for this time, such as 90s, 10m or 2h, for `rollyard exec`",
)
@click.option(
    "--mode",
    type=click.Choice(["train", "eval"]),
    default="train",
    help="label that is stored with the trajectories  [default: train]",
)
@click.option("--wait", is_flag=True, help="wait until all have ended; exit code 1 if one ended without a score")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["summary", "id", "jsonl"]),
    default="summary",
    help="output: a summary, the ids, or the trajectories as JSON lines",
)
@with_client
async def submit(
    client: AsyncClient,
    namespace: str,
    file: str,
    pool: str,
    n: int,
    temperature: float | None,
    sampling: tuple[str, ...],
    image: str | None,
    checked: Chosen,
    id_prefix: str,
    keep_failed: float | None,
    mode: str,
    wait: bool,
    form: str,
) -> None:
    """Submit tasks as rollouts."""
    if id_prefix and not re.fullmatch(ID_PATTERN, id_prefix):
        raise click.UsageError(
            f"--id-prefix {id_prefix!r}: write only letters, digits and . _ : - and start with a letter or a digit"
        )
    prefix = id_prefix or f"run-{secrets.token_hex(4)}"
    given: dict[str, Any] = {"pool": pool, "n": n, "mode": mode, "sampling": sampling_of(temperature, sampling)}
    if keep_failed is not None:
        given["budgets"] = {"keep_failed_seconds": math.ceil(keep_failed)}
    numbered = read_tasks(file, prefix, given, None if image is None else given_image(image, os.getcwd()))
    numbered = checked.choose(numbered, lambda one: one.request.task)
    ids: list[str] = []
    again = (
        f"of {n * len(numbered)} rollouts were accepted and continue on the server. To cancel them: rollyard rollouts "
        f"cancel --prefix {prefix}. To wait for them: repeat the submit with --id-prefix {prefix}"
    )
    async with _report_unfinished(ids, again):
        await submit_batches(client, namespace, numbered, file, ids)
        if form == "id":
            click.echo("\n".join(ids))
        elif form == "summary":
            click.echo(f"{len(ids)} rollouts accepted in pool {pool}, with ids {prefix}-…")
        if not (wait or form == "jsonl"):
            return
        ended: list[Trajectory] = []
        async with ProgressLine(client, namespace, pool, ids).displayed():
            for id in ids:
                trajectory = await client.wait(id, namespace)
                ended.append(trajectory)
                if form == "jsonl":
                    click.echo(trajectory.model_dump_json())
    if form == "summary":
        click.echo("\n".join(_summary(ended)))
    if not all(trajectory.status.scored for trajectory in ended):
        sys.exit(1)


@contextlib.asynccontextmanager
async def _report_unfinished(ids: Sequence[str], again: str) -> AsyncIterator[None]:
    """If the command ends early, print how to cancel its rollouts, and how to get their results later."""
    try:
        yield
    except BaseException:
        if ids:
            click.echo(f"{len(ids)} {again}", err=True)
        raise


def _summary(ended: Sequence[Trajectory]) -> list[str]:
    rows = [["STATUS", "ROLLOUTS", "MEAN REWARD", "WHY"]]
    for status, reason in sorted({(t.status, t.error.reason if t.error else "") for t in ended}):
        found = [t for t in ended if t.status == status and (t.error.reason if t.error else "") == reason]
        rewards = [t.reward for t in found if t.reward is not None]
        error = found[0].error
        why = f"{error.reason}: {' '.join(error.message.split())[:160]} (rollout {found[0].id})" if error else ""
        if found[0].cut_short:
            why = f"{' '.join(found[0].cut_short.split())[:160]} (rollout {found[0].id})"
        rows.append([status.value, str(len(found)), f"{sum(rewards) / len(rewards):.3f}" if rewards else "-", why])
    return align(rows)


@click.group()
def rollouts() -> None:
    """Show, fork or cancel rollouts, and save their snapshots."""


for command in (list_, top, summary, losses, profile, tokens):
    rollouts.add_command(command)


@rollouts.command("get")
@click.argument("id")
@click.option("--wait", default=0.0, help="seconds to wait for the end of the rollout")
@with_client
async def get(client: AsyncClient, namespace: str, id: str, wait: float) -> None:
    """Print the trajectory of an ended rollout as JSON, or the state of an unfinished rollout."""
    view, trajectory = await client.rollout(id, namespace, wait=wait)
    click.echo((trajectory or view).model_dump_json(indent=2))


@rollouts.command("cancel")
@click.argument("ids", nargs=-1)
@click.option("--prefix", help="all unfinished rollouts whose ids begin with it")
@click.option("--pool", help="all unfinished rollouts of this pool")
@with_client
async def cancel(
    client: AsyncClient, namespace: str, ids: tuple[str, ...], prefix: str | None, pool: str | None
) -> None:
    """Cancel rollouts. Rollouts that have already ended stay as they are."""
    chosen = list(ids)
    if prefix or pool:
        found = client.rollouts(namespace, pool=pool, status=ON_THE_WAY)
        chosen += [view.id async for view in found if view.id.startswith(prefix or "")]
    elif not ids:
        raise click.UsageError("name rollouts by id, or select unfinished ones with --prefix or --pool")
    for id in chosen:
        view = await client.cancel(id, namespace)
        click.echo(f"rollout/{id} {view.status.value.lower()}")


@rollouts.command("describe")
@click.argument("id")
@with_client
async def describe(client: AsyncClient, namespace: str, id: str) -> None:
    """Describe a rollout for people: state, history, turns, score."""
    view, trajectory = await client.rollout(id, namespace)
    click.echo("\n".join(align([DESCRIBED, [cell(view, name) for name in DESCRIBED]])))
    if view.waiting:
        click.echo(printable(f"\n{view.waiting}"))
    if view.metadata:
        click.echo(printable(f"\nmetadata {json.dumps(view.metadata, ensure_ascii=False)}"))
    if view.weights_versions:
        again = f", restarted {view.outdated} times because its weights were too old" if view.outdated else ""
        click.echo(printable(f"\nweights {', '.join(view.weights_versions)}{again}"))
    if view.kept:
        until = datetime.fromtimestamp(view.kept.until, UTC)
        click.echo(
            f"\nThe sandbox of its failed attempt is kept on node {view.kept.node} until {until:%Y-%m-%d %H:%M:%S} UTC: "
            f"rollyard exec -it {id} -- bash"
        )
    if view.error:
        click.echo(printable(f"\n{view.error.reason} in {view.error.stage}: {view.error.message}"))
    click.echo("\n" + "\n".join(history_lines(await client.rollout_history(id, namespace))))
    if found := await client.snapshots(id, namespace):
        click.echo("\n" + "\n".join(snapshot_lines(found)))
    if view.artifact == "Deleted":
        click.echo(
            "\nIts artifact is deleted (artifactTtlSecondsAfterFinished of the pool): it cannot be scored again."
        )
    if trajectory:
        click.echo(printable("\n" + "\n".join(transcript(trajectory))))
    elif turns := await client.saved_turns(id, namespace):
        lines = [
            line for index, turn in enumerate(turns) for line in ("", *call_lines(index, turn), *result_lines(turn))
        ]
        click.echo(printable("\n".join(lines)))
        click.echo(f"\n=== {len(turns)} turns so far; to follow them: rollyard logs -f rollout/{id}")


@rollouts.command("snapshot")
@click.argument("id")
@click.argument("turn", type=click.IntRange(1))
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    help="new file for the archive, such as turn-3.tar.zst; - for standard output",
)
@with_client
async def snapshot(client: AsyncClient, namespace: str, id: str, turn: int, file: str) -> None:
    """Save the files that a rollout's sandbox had changed after a turn, as a tar archive in zstd."""
    data = await client.snapshot(id, turn, namespace)
    try:
        with click.open_file(file, "wb") as target:
            target.write(data)
    except OSError as error:
        raise RollyardError(f"{file} cannot be written: {error.strerror}") from None


@rollouts.command("fork")
@click.argument("id")
@click.argument("turn", type=click.IntRange(1))
@click.option("--n", default=1, type=click.IntRange(1, 1024), help="number of new rollouts")
@click.option("--temperature", type=float, help="sampling temperature; 0 is greedy  [default: 1]")
@click.option(
    "--sampling", multiple=True, metavar="NAME=VALUE", help="further sampling parameter, such as max_tokens=512"
)
@with_client
async def fork(
    client: AsyncClient,
    namespace: str,
    id: str,
    turn: int,
    n: int,
    temperature: float | None,
    sampling: tuple[str, ...],
) -> None:
    """Submit rollouts that go on from a turn of an ended rollout. Print their ids.

    The other rollout needs a snapshot after the turn.
    """
    view, trajectory = await client.rollout(id, namespace)
    if trajectory is None:
        raise click.UsageError(f"rollout {id} has not ended yet; fork from it when it has")
    request = RolloutRequest.model_validate(
        {
            "id": f"{id}-fork-{secrets.token_hex(4)}"[-128:].lstrip("._:-"),
            "pool": view.pool,
            "task": trajectory.task,
            "n": n,
            "agent": {"fork_from": {"rollout": id, "turn": turn}, "snapshots": "every"},
            "sampling": sampling_of(temperature, sampling),
        }
    )
    for made in await client.submit([request], namespace):
        click.echo(made)


@click.command(name="try")
@click.argument("task", metavar="TASK")
@click.option("--pool", required=True, help="RolloutPool to run in")
@click.option("--temperature", type=float, help="sampling temperature; 0 is greedy  [default: 1]")
@click.option(
    "--sampling", multiple=True, metavar="NAME=VALUE", help="further sampling parameter, such as max_tokens=512"
)
@with_client
async def try_(
    client: AsyncClient, namespace: str, task: str, pool: str, temperature: float | None, sampling: tuple[str, ...]
) -> None:
    """Run one task (a JSON file, or JSON) and print its turns."""
    id = f"try-{secrets.token_hex(4)}"
    given = {"id": id, "pool": pool, "sampling": sampling_of(temperature, sampling)}
    ids = await client.submit([read_task(task, given)], namespace)
    again = (
        f"rollout was accepted and continues on the server. To cancel it: rollyard rollouts cancel {id}. To see it: "
        f"rollyard rollouts describe {id}"
    )
    async with _report_unfinished(ids, again):
        trajectory = await follow_one(client, namespace, id)
    click.echo(printable("\n".join(transcript(trajectory))))
    if not trajectory.status.scored:
        sys.exit(1)


def transcript(trajectory: Trajectory) -> list[str]:
    """Return the conversation as text for people. For training use the token ids in the trajectory's segments."""
    lines = [f"task: {json.dumps(trajectory.task.model_dump(), ensure_ascii=False)[:2000]}"]
    if (fork := trajectory.forked_from) is not None:
        lines.append(f"goes on from turn {fork.turn} of rollout {fork.rollout}")
    if trajectory.regrade_of is not None:
        lines.append(f"scores the artifact of rollout {trajectory.regrade_of} again")
    for number, turn in enumerate(trajectory.turns, start=1):
        lines += ["", *break_lines(trajectory, number - 1)]
        lines += [f"--- turn {number}: {turn.prompt_length} + {turn.response_length} tokens", turn.text]
        for place, result in enumerate(turn.tool_results):
            failed = ", failed" if place in (turn.failed_calls or []) else ""
            lines += [f"--- tool result{failed}", result]
        if turn.observation is not None or turn.reward is not None:
            reward = "" if turn.reward is None else f", reward {turn.reward:g}"
            lines += [f"--- environment{reward}", *([] if turn.observation is None else [turn.observation])]
    for call in trajectory.role_calls:
        tokens = f"{call.prompt_tokens} + {call.completion_tokens} tokens"
        about = f"{call.purpose} in {call.stage}, {call.ending}, {tokens}, {call.seconds:.2f} s"
        lines += ["", f"--- {call.role}: {about}", call.text]
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    lines += ["", f"=== {trajectory.status.value}, reward {reward} {dict(trajectory.metrics)}"]
    lines += [f"    {line}" for line in break_counts(trajectory)]
    if trajectory.parts:
        lines.append(f"    parts of the reward: {dict(trajectory.parts)}")
    lines += [f"    {line}" for note in trajectory.notes for line in note.splitlines()]
    if trajectory.cut_short:
        lines.append(f"    {trajectory.cut_short}")
    if trajectory.error:
        lines.append(f"    {trajectory.error.reason}: {trajectory.error.message}")
    return lines
