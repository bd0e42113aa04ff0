"""Rollouts on Slurm that are longer than their allocations' walltimes, while nodes die, are drained and are preempted.

A plain model replays the recorded turns, so that no call can have run twice on a state that had its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from rollyard.core.aio import running
from rollyard.core.errors import NotFound
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.trajectory import Trajectory
from tests.support.file_work import file_turns, files_after, files_in, stem_task
from tests.support.scripted_engine import SAMPLED, digest, scripted_pool
from tests.support.slurm_field import QUICK, Field, field_of
from tests.support.yard import MODEL, kill

pytestmark = [pytest.mark.long, pytest.mark.slow(3600)]

TURNS = 8
MOST = 200
"""Greatest number of rollouts of each pool."""
NAMES = {f"{pool}-{n:03}.": file_turns(TURNS, n) for pool in ("short", "steady") for n in range(MOST)}
PACE = 8.0
"""Seconds for 16 tokens: about 20 s for a turn, and 165 s for a rollout."""
WALLTIME = "00:02:00"
"""Walltime of the pool `short`. Rollouts take longer, so none ends in the allocation in which it began."""
STAGES = {
    "init": {"timeoutSeconds": 20, "workers": {"min": 2, "max": 8}},
    "run": {"timeoutSeconds": 300, "workers": {"min": 8, "max": 40}},
    "eval": {"timeoutSeconds": 40, "workers": {"min": 1, "max": 4}},
}
LEASE_SECONDS = 30.0
"""As a server has it by default, because a busy machine with 100 sandboxes is silent for seconds."""
GRACE = 50.0
"""Seconds of a drain, in which a turn ends."""


@dataclass
class Storm:
    """Faults of nodes that run rollouts."""

    of: Field
    chance: random.Random
    struck: Counter[str]

    async def run(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause * self.chance.uniform(0.7, 1.3))
            for pool in ("short", "steady"):
                await self._strike(pool)

    async def _strike(self, pool: str) -> None:
        found = [a for a in await self.of.allocations() if a.spec.pool.name == pool and not a.spec.drain]
        serving = [a for a in found if a.status.ready and a.status.job_state == "RUNNING"]
        if not serving:
            return
        one, how = self.chance.choice(serving), self.chance.choice(("kill", "drain", "preempt"))
        with contextlib.suppress(NotFound):
            await getattr(self, f"_{how}")(one)
            self.struck[f"{pool} {how}"] += 1

    async def _kill(self, one: Allocation) -> None:
        for pid in self.of.yard.processes("node-agent", one.metadata.name):
            kill(pid)

    async def _drain(self, one: Allocation) -> None:
        await self.of.client.drain(one.key, GRACE)

    async def _preempt(self, one: Allocation) -> None:
        node = str(one.status.node)
        job = await asyncio.to_thread(
            self.of.cluster.submit, "sleep 1", "--qos=high", "--exclusive", f"--nodelist={node}"
        )
        await asyncio.to_thread(self.of.cluster.wait_for_state, job, "RUNNING", "COMPLETING", "COMPLETED", "")


@pytest.fixture
async def moving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_of(tmp_path_factory, LEASE_SECONDS, accounting=True, nodes=9, conf=(*QUICK, "KillWait=30")) as of:
        policy = scripted_pool(of.yard.folder, MODEL, NAMES, PACE)
        usual: dict[str, Any] = {
            "allocation": {"exclude": ["n9"], "cpusPerTask": 8, "timeLimit": WALLTIME},
            "replicas": 2,
            "stages": STAGES,
        }
        own = {"nodelist": ["n9"]}
        await of.yard.apply(of.client, policy={**policy, "replicas": 1, "allocation": own}, demo={"replicas": 0})
        for name, changes in (
            ("short", {}),
            ("steady", {"allocation": {**usual["allocation"], "timeLimit": "01:00:00"}, "resume": "never"}),
        ):
            spec = {"inference": {"policy": "policy"}, "sandbox": SANDBOX, **usual, **changes}
            meta = {"name": name, "namespace": "default"}
            await of.client.apply(parse_object({**HEAD, "metadata": meta, "spec": spec}))
        await of.yard.ready(of.client)
        yield of


HEAD = {"apiVersion": "rollyard.dev/v1alpha1", "kind": "RolloutPool"}
AGENT = {"snapshots": "last", "tool_timeout_seconds": 5.0}
SANDBOX = {"runtime": "bubblewrap", "cpus": 0.05, "memory": "256M", "disk": "64M", "warm": {"max": 0}}


def request(pool: str, n: int) -> RolloutRequest:
    name = f"{pool}-{n:03}."
    given = {"id": f"{pool}-{n:03}", "pool": pool, "task": stem_task(name), "agent": AGENT}
    return RolloutRequest.model_validate(given)


def check_ids(one: Trajectory, sampled: set[tuple[str, str]]) -> None:
    """Check that each turn has the very ids that the model server sent for this rollout."""
    for turn in one.turns:
        ids = one.segments[turn.segment].token_ids[turn.prompt_length :][: turn.response_length]
        assert (f"{one.id}.", digest(ids)) in sampled, (one.id, turn)


async def check_files(of: Field, one: Trajectory) -> None:
    last = (await of.client.snapshots(one.id))[-1]
    assert files_in(await of.client.snapshot(one.id, last.turn)) == files_after(one.turns), one.id


def words_of(one: Trajectory) -> Counter[str]:
    return Counter(resumption.reason for resumption in one.resumptions)


@pytest.mark.parametrize(("count", "pause"), [(12, 90.0), (MOST, 100.0)])
async def test_rollouts_outlive_walltimes_deaths_drains_and_preemptions(
    moving: Field, count: int, pause: float
) -> None:
    log = (moving.yard.folder / "turns").with_suffix(SAMPLED)
    log.write_text("")
    storm = Storm(moving, random.Random(count), Counter())
    asked = [request(pool, n) for n in range(count) for pool in ("short", "steady")]
    ids = await moving.client.submit(asked)
    async with running(storm.run(pause)) as striking:
        waiting = asyncio.create_task(moving.yard.gather(moving.client, ids, 3000))
        await asyncio.wait([waiting, striking], return_when=asyncio.FIRST_COMPLETED)
        if striking.done():
            striking.result()
        ended = await waiting
    lines = [line.split() for line in log.read_text().splitlines()]
    sampled = {(name, ids) for name, ids in lines}
    done = [one for one in ended if one.status is Status.COMPLETED]
    again = {}
    for pool in ("short", "steady"):
        own = [one for one in done if one.id.startswith(pool)]
        ours = {f"{one.id}." for one in own}
        again[pool] = sum(name in ours for name, _ in lines) / (TURNS * max(1, len(own))) - 1
    why = sum((words_of(one) for one in ended if one.id.startswith("short")), Counter[str]())
    kept = sum(resumption.turn for one in ended for resumption in one.resumptions)
    print(
        f"\n{len(ended)} rollouts of {TURNS} turns, {dict(storm.struck)}, moved {dict(why)}, {kept} turns kept: sampled again "
        f"{again['short']:.1%} with resume: auto, {again['steady']:.1%} with never"
    )
    assert sorted(one.id for one in ended) == sorted(ids)
    assert {one.status for one in ended} <= {Status.COMPLETED, Status.INFRA_FAILED}, [one.error for one in ended]
    assert len(done) >= 0.98 * len(ended), [one.error for one in ended if one.error]
    for one in done:
        assert (one.reward, len(one.turns)) == (1.0, TURNS)
        check_ids(one, sampled)
        await check_files(moving, one)
    moved = [one for one in done if one.id.startswith("short")]
    assert all(words_of(one) for one in moved), "a rollout is longer than a walltime"
    for one in moved:
        if not {"Expired", "AllocationEnded"} & set(words_of(one)):  # only what was killed may lose a turn
            assert all(resumption.dropped == 0 for resumption in one.resumptions), one.resumptions
    assert again["short"] < again["steady"]
    if len(ids) >= 400:
        assert again["short"] <= 0.15
        assert again["steady"] >= 0.45
