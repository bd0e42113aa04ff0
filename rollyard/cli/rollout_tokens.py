"""The tokens of an ended rollout that its policy found least likely, as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import RollyardError
from rollyard.trajectory import Trajectory

BEFORE = 6
"""Number of tokens before each one that are shown with it."""


class SampledToken(NamedTuple):
    logprob: float
    segment: int
    """Index of its segment, from 0."""
    place: int
    """Index within the segment, from 0."""
    turn: int | None
    """Number of the turn that sampled it, from 1."""


@click.command("tokens")
@click.argument("id")
@click.option("--least", default=10, type=click.IntRange(1, 1000), show_default=True, help="number of tokens")
@with_client
async def tokens(client: AsyncClient, namespace: str, id: str, least: int) -> None:
    """Show the sampled tokens of an ended rollout that were least likely, the least likely first.

    SEGMENT counts from 1. INDEX is the place in the segment, from 0. BEFORE is the text of the tokens before it.
    """
    _, trajectory = await client.rollout(id, namespace)
    if trajectory is None:
        raise RollyardError(f"rollout {id} has not ended yet; its tokens are shown when it has")
    texts, parts = await client.token_texts(id, namespace)
    shown = {id: repr(text) for id, text in texts.items()} | {id: f"bytes {part.hex()}" for id, part in parts.items()}
    rows = token_rows(trajectory, shown, {**{id: "�" for id in parts}, **texts}, least)
    click.echo(printable("\n".join(align(rows))))


def token_rows(
    trajectory: Trajectory, shown: Mapping[int, str], texts: Mapping[int, str], least: int
) -> list[list[str]]:
    """Return a head and a row for each token. `shown`: id -> text in its column. `texts`: id -> text within a sentence."""
    rows = [["PROBABILITY", "LOGPROB", "TOKEN", "ID", "TURN", "SEGMENT", "INDEX", "BEFORE"]]
    for token in least_likely(trajectory, least):
        ids = trajectory.segments[token.segment].token_ids
        id, before = ids[token.place], ids[max(0, token.place - BEFORE) : token.place]
        place = [str(token.turn or "-"), str(token.segment + 1), str(token.place)]
        context = repr("".join(texts.get(one, "�") for one in before))
        likely = f"{100 * math.exp(token.logprob):.3g} %"
        rows.append([likely, f"{token.logprob:.3f}", shown.get(id, "-"), str(id), *place, context])
    return rows


def least_likely(trajectory: Trajectory, least: int) -> list[SampledToken]:
    """Return the sampled tokens with the lowest logprobs, the lowest first."""
    found = [
        SampledToken(logprob, number, index, None)
        for number, segment in enumerate(trajectory.segments)
        for index, logprob in enumerate(segment.logprobs)
        if logprob is not None
    ]
    return [token._replace(turn=_turn(trajectory, token)) for token in sorted(found)[:least]]


def _turn(trajectory: Trajectory, token: SampledToken) -> int | None:
    for number, turn in enumerate(trajectory.turns, 1):
        if turn.segment == token.segment and 0 <= token.place - turn.prompt_length < turn.response_length:
            return number
    return None
