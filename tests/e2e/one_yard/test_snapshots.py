"""Snapshots of whole rollouts: after each turn, with what its tools wrote, from real sandboxes of a node agent."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from rollyard.client import AsyncClient
from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import ForkPoint, RolloutRequest, RolloutView, Stage, Status
from tests.e2e.test_command_line import rollyard
from tests.support.yard import Yard, kill, requests

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(30)]

COMMAND = """cat > /tmp/harness.py <<'EOF'
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 9}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF
echo noted > notes.txt; mkfifo pipe; python3 /tmp/harness.py"""

SOLVE = (
    COMMAND
    + """
mkdir -p lib && echo 'def square(n): return n * n' > lib/squares.py && ln -s lib/squares.py squares.py
printf 'import time, squares\\ndef f(n):\\n    time.sleep(2)\\n    return squares.square(n)\\n' > s.py
"""
)
"""A command that writes a solution with a module of its own."""


def squares(id: str, **more: object) -> RolloutRequest:
    cases = [{"call": "f(3)", "expect": "9"}]
    task = {"kind": "code", "problem": "Square.", "solution": "/workspace/s.py", "cases": cases, **more}
    agent = {"type": "command", "command": SOLVE}
    return RolloutRequest.model_validate({"id": id, "pool": "demo", "task": task, "agent": agent})


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(archive).read())) as found:
        return found.getnames()


async def test_every_turn_of_the_loop_has_one(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    ids = await client.submit(requests(2, 2, prefix="every", agent={"snapshots": "every"}))
    for ended in await yard.gather(client, ids):
        assert ended.status.scored, ended.error
        found = await client.snapshots(ended.id)
        assert [one.turn for one in found] == list(range(1, len(ended.turns) + 1))
        assert {one.error for one in found} == {None}
        for one in found:
            archive = await client.snapshot(ended.id, one.turn)
            assert len(archive) == one.size
            assert "workspace" in names(archive)


async def test_a_command_has_one_at_its_end(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agent = {"type": "command", "command": COMMAND, "snapshots": "last"}
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="last", agent=agent)))
    assert ended.status in (Status.COMPLETED, Status.TRUNCATED), ended.error
    (one,) = await client.snapshots(ended.id)
    assert (one.turn, one.left_out_count) == (len(ended.turns), 0)
    assert {"workspace/notes.txt", "workspace/pipe", "tmp/harness.py"} <= set(names(await client.snapshot(ended.id, 1)))


async def test_none_without_a_request(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="unasked")))
    assert await client.snapshots(ended.id) == []


async def test_a_rollout_goes_on_from_a_turn_of_another(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    asked = requests(3, 3, prefix="parent", agent={"snapshots": "every"}, sampling={"temperature": 0})
    parents = await yard.gather(client, await client.submit(asked))
    parent = next(one for one in parents if one.status.scored and len(one.turns) > 1 and len(one.segments) == 1)
    request = next(one for one in asked if one.id == parent.id)
    agent = {"fork_from": {"rollout": parent.id, "turn": 1}, "snapshots": "last"}
    fork = {
        **request.model_dump(exclude_defaults=True),
        "id": "fork",
        "n": 3,
        "agent": agent,
        "sampling": {"temperature": 1},
    }
    shared = parent.turns[1].prompt_length
    files = set(names(await client.snapshot(parent.id, 1)))
    for ended in await yard.gather(client, await client.submit([RolloutRequest.model_validate(fork)])):
        assert ended.status.scored, ended.error
        assert ended.forked_from == ForkPoint(rollout=parent.id, turn=1)
        segment = ended.segments[0]
        assert segment.token_ids[:shared] == parent.segments[0].token_ids[:shared]
        assert segment.prompt_length == ended.turns[0].prompt_length == shared
        assert not any(segment.loss_mask[:shared])
        assert segment.loss_mask[shared] == 1
        (last,) = await client.snapshots(ended.id)
        assert files <= set(names(await client.snapshot(ended.id, last.turn)))


async def test_a_fork_of_the_last_turn_is_refused_and_says_why(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    (asked,) = requests(1, 0, prefix="ended", agent={"snapshots": "every"}, sampling={"temperature": 0})
    (parent,) = await yard.gather(client, await client.submit([asked]))
    agent = {"fork_from": {"rollout": parent.id, "turn": len(parent.turns)}}
    fork = {**asked.model_dump(exclude_defaults=True), "id": "no-fork", "agent": agent}
    with pytest.raises(Invalid, match=f"turn {len(parent.turns)} of rollout '{parent.id}' ended the conversation"):
        await client.submit([RolloutRequest.model_validate(fork)])


async def test_eval_begins_with_what_run_has_changed(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    asked = [squares("whole", eval_from_snapshot=True), squares("solution-alone")]
    whole, alone = await yard.gather(client, await client.submit(asked))
    assert (whole.reward, whole.error) == (1.0, None)
    assert (alone.reward, alone.error) == (0.0, None)
    assert [one.turn for one in await client.snapshots(whole.id)] == [len(whole.turns)]


async def test_eval_begins_with_it_on_another_node_too(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    (id,) = await client.submit([squares("moved", eval_from_snapshot=True)])

    async def in_eval() -> RolloutView | None:
        view, _ = await client.rollout(id)
        return view if view.stage is Stage.EVAL and view.node is not None else None

    await yard.until(in_eval)

    async def holders() -> list[str | None]:
        return [entry.allocation for entry in (await client.rollout_history(id)).entries if entry.event == "Leased"]

    (holder,) = await holders()
    for pid in yard.processes("node-agent", str(holder)):
        kill(pid)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    first, *others = await holders()
    assert first == holder
    assert others
    assert holder not in others


async def test_the_command_line_shows_saves_and_forks(served: tuple[Yard, AsyncClient], tmp_path: Path) -> None:
    yard, client = served
    asked = requests(2, 2, prefix="cli", agent={"snapshots": [1, 900]}, sampling={"temperature": 0})
    parents = await yard.gather(client, await client.submit(asked))
    parent = next(one for one in parents if one.status.scored and len(one.turns) > 1)
    described, _ = await asyncio.to_thread(rollyard, yard, "rollouts", "describe", parent.id)
    assert "SNAPSHOT AFTER TURN" in described
    assert [one.turn for one in await client.snapshots(parent.id)] == [1]
    file = tmp_path / "turn.tar.zst"
    await asyncio.to_thread(rollyard, yard, "rollouts", "snapshot", parent.id, "1", "-o", str(file))
    assert file.read_bytes() == await client.snapshot(parent.id, 1)
    nowhere = str(tmp_path / "no" / "file")
    _, refused = await asyncio.to_thread(rollyard, yard, "rollouts", "snapshot", parent.id, "1", "-o", nowhere, code=1)
    assert refused == f"error: {nowhere} cannot be written: No such file or directory\n"
    told, _ = await asyncio.to_thread(rollyard, yard, "rollouts", "fork", parent.id, "1", "--n", "2")
    forks = await yard.gather(client, told.split())
    assert [fork.forked_from for fork in forks] == [ForkPoint(rollout=parent.id, turn=1)] * 2
    shown, _ = await asyncio.to_thread(rollyard, yard, "rollouts", "describe", forks[0].id)
    assert f"goes on from turn 1 of rollout {parent.id}" in shown
    _, refused = await asyncio.to_thread(rollyard, yard, "rollouts", "fork", parent.id, "99", code=1)
    assert "has no snapshot after turn 99; there are snapshots after turns 1" in refused
