"""Rollouts that outlive their node agents: they go on at their last turn, with their tokens and their files as they were."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest
from rollyard.node.turn_saver import unpacked
from rollyard.trajectory import SavedTurn, Trajectory
from tests.support.file_work import file_turns, files_after, files_in, stem_task
from tests.support.scripted_engine import SAMPLED, scripted_pool
from tests.support.yard import MODEL, Yard, end, kill

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(60)]

TURNS = 8
SLOW = "sleep 0.5"
NAMES = {name: file_turns(TURNS, seed, SLOW) for seed, name in enumerate(("killed-1", "never-1"))}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def resuming(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    policy = scripted_pool(yard.folder, MODEL, NAMES)
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy={**policy, "replicas": 1}, demo={"replicas": 2})
            await yard.ready(client)
            yield yard, client
    finally:
        await end(yard)


def request(name: str, **agent: Any) -> RolloutRequest:
    agent = {"snapshots": "last", **agent}
    return RolloutRequest.model_validate({"id": name, "pool": "demo", "task": stem_task(name), "agent": agent})


def saved_turns(yard: Yard, id: str) -> list[SavedTurn]:
    """Return what the store has of a rollout."""
    with closing(sqlite3.connect(f"file:{yard.data / 'rollyard.db'}?mode=ro", uri=True)) as db:
        query = "SELECT saved_turns.body FROM saved_turns JOIN rollouts ON rollout = seq WHERE id = ? ORDER BY turn"
        return unpacked([body for (body,) in db.execute(query, (id,))])


def rows(yard: Yard) -> int:
    with closing(sqlite3.connect(f"file:{yard.data / 'rollyard.db'}?mode=ro", uri=True)) as db:
        return sum(
            db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("saved_turns", "resume_states")
        )


async def holder(client: AsyncClient, id: str) -> str:
    entries = (await client.rollout_history(id)).entries
    return next(str(entry.allocation) for entry in reversed(entries) if entry.event == "Leased")


async def kill_holder(yard: Yard, client: AsyncClient, id: str) -> None:
    for pid in yard.processes("node-agent", await holder(client, id)):
        kill(pid)


def sampled(yard: Yard, name: str) -> int:
    return (yard.folder / "turns").with_suffix(SAMPLED).read_text().split().count(name)


async def check_files(client: AsyncClient, ended: Trajectory) -> None:
    last = (await client.snapshots(ended.id))[-1]
    assert files_in(await client.snapshot(ended.id, last.turn)) == files_after(ended.turns)


async def test_a_killed_node_agent_costs_at_most_the_turn_under_way(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("killed-1")])

    async def some_saved() -> list[SavedTurn]:
        found = await asyncio.to_thread(saved_turns, yard, id)
        return found if len(found) >= 4 else []

    await yard.until(some_saved)
    await kill_holder(yard, client, id)
    before = saved_turns(yard, id)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.turn, resumption.replayed, resumption.dropped) == (len(before), len(before), 0)
    assert resumption.why is None
    (segment,) = ended.segments
    for saved, turn in zip(before, ended.turns, strict=False):
        assert saved.turn == turn
        start = turn.prompt_length
        assert segment.token_ids[start : start + turn.response_length] == saved.token_ids
        assert segment.logprobs[start : start + turn.response_length] == saved.logprobs
        assert segment.weights_version[start : start + turn.response_length] == saved.weights_versions
    assert TURNS <= sampled(yard, id) <= TURNS + 2
    await check_files(client, ended)
    words = [entry.event for entry in (await client.rollout_history(id)).entries]
    assert words.count("Resumed") == 1
    assert rows(yard) == 0
    out, _ = await yard.rollyard("rollouts", "describe", id)
    assert f"after turn {len(before)}, {len(before)} played again, 0 sampled again" in out


async def test_never_means_from_the_beginning(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("never-1", resume="never")])

    async def some_sampled() -> bool:
        return sampled(yard, id) >= 4

    await yard.until(some_sampled)
    await kill_holder(yard, client, id)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 2)
    assert [(one.turn, one.why) for one in ended.resumptions] == [(0, "`resume` is never in its pool or its request")]
    assert sampled(yard, id) >= TURNS + 4
    await check_files(client, ended)
