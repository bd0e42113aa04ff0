"""Requests to go on from a turn of another rollout: what is refused and why, and what the node agent gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import Fenced
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import ForkPoint, RolloutRequest
from rollyard.trajectory import Outcome, Turn
from rollyard.wire.node import LeaseRef, SnapshotHeader
from tests.api.test_columns import node_agent
from tests.api.test_rollouts_waiting import pool, submit
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool


async def parent(api: Api, folder: Path, id: str, **more: Any) -> None:
    """An ended rollout with snapshots after turns 2 and 4, and one after turn 3 that is too large. It ended with turn 4."""
    status, answer = await submit(api, id, **more)
    assert status == 202, answer
    played = PlayedPool(api.parts)
    (record,) = await played.lease()
    ref = LeaseRef(namespace="default", id=id, fence=record.fence)
    async with node_agent(api, folder) as uploads:
        for turn in (2, 4):
            await uploads.snapshot(SnapshotHeader(lease=ref, turn=turn, image="sha256:1"), f"files of {id}".encode())
        await uploads.snapshot(SnapshotHeader(lease=ref, turn=3, error="it is too large"), b"")
    call = Turn(segment=0, prompt_length=1, response_length=1, text="", finish_reason="stop", tool_results=["found"])
    await played.finish(record, Played(turns=[call, call, call, evolve(call, tool_results=[])]))


async def refused(api: Api, id: str, turn: int, **more: Any) -> str:
    status, answer = await submit(api, "fork", agent={"fork_from": {"rollout": id, "turn": turn}}, **more)
    assert status == 422, answer
    (cause,) = answer["details"]["causes"]
    assert cause["field"] == "agent.fork_from"
    return str(answer["message"])


async def test_what_cannot_be_forked_is_refused_with_its_reason(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api:
        await pool(api)
        await parent(api, tmp_path, "r")
        await submit(api, "waits")
        assert "there is no rollout 'none' to fork from; results are deleted" in await refused(api, "none", 1)
        assert "rollout 'waits' has not ended yet" in await refused(api, "waits", 1)
        assert "no snapshot after turn 1; there are snapshots after turns 2, 4" in await refused(api, "r", 1)
        assert "turn 4 of rollout 'r' ended the conversation" in await refused(api, "r", 4)
        assert "no snapshot after turn 3: it is too large" in await refused(api, "r", 3)
        assert "had another task" in await refused(api, "r", 2, kind="quiz")
        await api.ask("DELETE", "/v1/rollouts/waits")
        assert "without a stored conversation" in await refused(api, "waits", 2)


async def test_a_node_agent_gets_all_ancestors_and_the_files(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api:
        await pool(api)
        await parent(api, tmp_path, "first")
        await parent(api, tmp_path, "second", agent={"fork_from": {"rollout": "first", "turn": 2}})
        status, answer = await submit(api, "third", agent={"fork_from": {"rollout": "second", "turn": 2}})
        assert status == 202, answer
        queued = await api.parts.rollouts.get("default", "third")
        assert queued.endpoints == {"policy": "e"}, "its prompt is in that endpoint's cache"
        (record,) = await PlayedPool(api.parts).lease()
        ref = LeaseRef(namespace="default", id="third", fence=record.fence)
        async with node_agent(api, tmp_path) as uploads:
            ancestors = await uploads.ancestors(ref)
            assert [point for point, _ in ancestors] == [ForkPoint(rollout=id, turn=2) for id in ("first", "second")]
            assert all(isinstance(outcome, Outcome) and outcome.segments for _, outcome in ancestors)
            about, archive = await uploads.fork_snapshot(ref)
            assert (about.turn, about.image, archive) == (2, "sha256:1", b"files of second")
            with pytest.raises(Fenced):
                await uploads.ancestors(ref.model_copy(update={"fence": 9}))
        status, again = await submit(api, "third", agent={"fork_from": {"rollout": "second", "turn": 2}})
        assert (status, again["rollouts"][0]["created"]) == (202, False)
        _, told = await api.ask("GET", "/v1/rollouts/second")
        assert told["trajectory"]["forked_from"] == {"rollout": "first", "turn": 2}


def test_a_command_and_a_batch_fork_from_nothing() -> None:
    agent = {"type": "command", "command": "x", "fork_from": {"rollout": "r", "turn": 1}}
    with pytest.raises(ValueError, match="`fork_from` is for the built-in loop"):
        RolloutRequest.model_validate({"pool": "swe", "task": {"kind": "math"}, "agent": agent})
