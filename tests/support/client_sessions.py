"""Programs of tests/clients in sessions of a yard, and what their trajectories must be."""

from __future__ import annotations

import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.session import SessionRequest
from rollyard.trajectory import Trajectory
from rollyard.trajectory.session import SessionTrajectory
from tests.support.model_clients import ModelClient
from tests.support.recompute import differences
from tests.support.yard import Yard

CLOSE = 0.02


@contextlib.asynccontextmanager
async def running(
    client: AsyncClient, yard: Yard, program: ModelClient, folder: Path
) -> AsyncIterator[tuple[str, Process]]:
    """Run the program in a session of its own; yield the session's id and the process."""
    request = SessionRequest(pool="policy", sampling=Sampling(temperature=0.5, max_tokens=200))
    opened = await client.open_session(request, wait=60)
    urls = opened.base_url, opened.anthropic_base_url, opened.key
    async with program.running(*urls, yard.data / "ca.pem", folder) as process:
        yield opened.id, process


async def run(client: AsyncClient, yard: Yard, program: ModelClient, folder: Path) -> SessionTrajectory:
    async with running(client, yard, program, folder) as (session, process):
        await program.end(process)
    return (await client.close_session(session)).trajectory


def check(program: ModelClient, trajectory: Trajectory | SessionTrajectory, policy: Path) -> None:
    """Check that a run of the program gave its turns, in one segment if it keeps its history, with the policy's logprobs."""
    assert [turn.text for turn in trajectory.turns] == list(program.turns)
    changed = len(program.turns) - 1 if program.rewrites else 0
    assert len(trajectory.segments) == 1 + changed
    assert trajectory.breaks == ({"HistoryChanged": changed} if changed else {})
    sampled = sum(sum(segment.loss_mask) for segment in trajectory.segments)
    assert sampled == sum(turn.response_length for turn in trajectory.turns)
    assert max(differences([trajectory], policy)) < CLOSE
