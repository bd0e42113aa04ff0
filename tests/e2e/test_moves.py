"""Rollouts on Slurm that are longer than their allocations' walltimes, while nodes die, are drained and are preempted.

A plain model replays the recorded turns, so that no call can have run twice on a state that had its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import NotFound
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.trajectory import Trajectory
from tests.support.file_work import file_turns, files_after, files_in, stem_task
from tests.support.scripted_engine import SAMPLED, digest, scripted_pool
from tests.support.slurm_field import QUICK, Field, field_of
from tests.support.yard import MODEL, kill

pytestmark = [pytest.mark.long, pytest.mark.slow(3600)]

TURNS = 8
MOST = 200
"""Greatest number of rollouts of each pool."""
POOLS = ("short", "steady")
WAYS = ("kill", "drain", "preempt")
THIRD_TURNS = 20
NAMES = {f"{pool}-{n:03}.": file_turns(TURNS, n) for pool in POOLS for n in range(MOST)}
NAMES |= {"third-000.": file_turns(THIRD_TURNS, 0)}
PACE = 6.5
"""Seconds for 16 tokens: about 16 s for a turn, and 125 s for a rollout."""
WALLTIME, WALLTIME_SECONDS = "00:02:00", 120
"""Walltime of the pool `short`. Rollouts take longer, so none ends in the allocation in which it began."""
STAGES = {
    "init": {"timeoutSeconds": 20, "workers": {"min": 4, "max": 8}},
    "run": {"timeoutSeconds": 300, "workers": {"min": 40, "max": 40}},
    "eval": {"timeoutSeconds": 40, "workers": {"min": 1, "max": 4}},
}
LEASE_SECONDS = 30.0
"""As a server has it by default, because a busy machine with 100 sandboxes is silent for seconds."""
GRACE = 50.0
"""Seconds of a drain, in which a turn ends."""


class SampledTurns:
    """Turns whose sampling began, as the model server logs them."""

    def __init__(self, log: Path) -> None:
        self._log = log
        log.write_text("")

    def of(self, pool: str) -> list[tuple[str, str]]:
        """Return (name of the conversation, digest of the ids) of each turn of a pool's rollouts."""
        lines = (line.split() for line in self._log.read_text().splitlines())
        return [(name, ids) for name, ids in lines if name.startswith(f"{pool}-")]

    def again(self, pool: str, ids: Collection[str]) -> float:
        """Return sampled turns / needed turns - 1 of these rollouts."""
        names = {f"{id}." for id in ids if id.startswith(pool)}
        return sum(name in names for name, _ in self.of(pool)) / (TURNS * max(1, len(names))) - 1

    def again_by_reason(self, pool: str, ended: Collection[Trajectory]) -> dict[str, tuple[int, int]]:
        """Return for each set of reasons for which a pool's rollouts were resumed: number of rollouts, and of turns sampled
        again."""
        lost: dict[str, tuple[int, int]] = {}
        counts = Counter(name for name, _ in self.of(pool))
        for one in ended:
            if not one.id.startswith(pool):
                continue
            reasons = " ".join(sorted(set(words_of(one))))
            rollouts, turns = lost.get(reasons, (0, 0))
            lost[reasons] = rollouts + 1, turns + counts[f"{one.id}."] - TURNS
        return lost


@dataclass
class Storm:
    """Faults of nodes that run a pool's rollouts."""

    of: Field
    pool: str
    sampled: SampledTurns
    struck: Counter[str]

    async def run(self, most: int, turns: int) -> None:
        """Strike a node each time that so many turns were sampled. So a slow machine has no more faults than a fast one, and
        they end before the rollouts."""
        for number in range(1, most + 1):

            async def more_sampled(least: int = turns * number) -> bool:
                return len(self.sampled.of(self.pool)) >= least

            await self.of.yard.until(more_sampled, 3000.0)
            await self._strike(WAYS[number % len(WAYS)])

    async def _strike(self, how: str) -> None:
        """Strike the node with the most rollouts in RUN."""

        async def busiest() -> Allocation | None:
            found = [a for a in await self.of.allocations() if a.spec.pool.name == self.pool and not a.spec.drain]
            serving = {str(a.status.node): a for a in found if a.status.ready and a.status.job_state == "RUNNING"}
            views = self.of.client.rollouts(pool=self.pool, status=["Running"])
            nodes = Counter([one.node async for one in views if one.stage is Stage.RUN and one.node in serving])
            return serving[str(nodes.most_common(1)[0][0])] if nodes else None

        one = await self.of.yard.until(busiest)
        with contextlib.suppress(NotFound):
            await getattr(self, f"_{how}")(one)
            self.struck[f"{self.pool} {how}"] += 1

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
        own = {"nodelist": ["n9"]}
        await of.yard.apply(of.client, policy={**policy, "replicas": 1, "allocation": own}, demo={"replicas": 0})
        yield of


HEAD = {"apiVersion": "rollyard.dev/v1alpha1", "kind": "RolloutPool"}
AGENT = {"snapshots": "last", "tool_timeout_seconds": 5.0, "max_turns": 2 * THIRD_TURNS}
SANDBOX = {"runtime": "bubblewrap", "cpus": 0.05, "memory": "4G", "disk": "64M", "warm": {"max": 0}}
"""Its limit of memory is far away: a memory guard looks at each sandbox as often as the sandbox could reach its limit."""


async def declare(of: Field, name: str, walltime: str, **changes: Any) -> None:
    allocation = {"exclude": ["n9"], "cpusPerTask": 8, "timeLimit": walltime}
    spec = {
        "inference": {"policy": "policy"},
        "sandbox": SANDBOX,
        "stages": STAGES,
        "allocation": allocation,
        **changes,
    }
    await of.client.apply(parse_object({**HEAD, "metadata": {"name": name, "namespace": "default"}, "spec": spec}))


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


@pytest.mark.parametrize(("count", "strikes"), [(12, 3), (MOST, 8)])
async def test_rollouts_outlive_walltimes_deaths_drains_and_preemptions(
    moving: Field, count: int, strikes: int
) -> None:
    sampled = SampledTurns((moving.yard.folder / "turns").with_suffix(SAMPLED))
    struck = Counter[str]()
    await declare(moving, "short", WALLTIME, replicas=2)
    await declare(moving, "steady", "01:00:00", replicas=2, resume="never")
    await moving.yard.ready(moving.client)
    asked = [request(pool, n) for n in range(count) for pool in POOLS]
    async with asyncio.TaskGroup() as group:
        ids = await moving.client.submit(asked)
        storms = [Storm(moving, pool, sampled, struck) for pool in POOLS]
        striking = [group.create_task(storm.run(strikes, TURNS * count // strikes)) for storm in storms]
        ended = await moving.yard.gather(moving.client, ids, 3000)
        for task in striking:
            task.cancel()
    done = [one for one in ended if one.status is Status.COMPLETED]
    again = {pool: sampled.again(pool, [one.id for one in done]) for pool in POOLS}
    why = sum((words_of(one) for one in ended if one.id.startswith("short")), Counter[str]())
    kept = sum(resumption.turn for one in ended for resumption in one.resumptions)
    lost = sampled.again_by_reason("short", done)
    print(
        f"\n{len(ended)} rollouts of {TURNS} turns, {dict(struck)}, moved {dict(why)}, {kept} turns kept: sampled again "
        f"{again['short']:.1%} with resume: auto, {again['steady']:.1%} with never; turns sampled again by reason: {lost}"
    )
    assert sorted(one.id for one in ended) == sorted(ids)
    assert {one.status for one in ended} <= {Status.COMPLETED, Status.INFRA_FAILED}, [one.error for one in ended]
    assert len(done) >= 0.98 * len(ended), [one.error for one in ended if one.error]
    own = {turn for pool in POOLS for turn in sampled.of(pool)}
    for one in done:
        assert (one.reward, len(one.turns)) == (1.0, TURNS)
        check_ids(one, own)
        await check_files(moving, one)
    moved = [one for one in done if one.id.startswith("short")]
    assert all(words_of(one) for one in moved), "a rollout is longer than a walltime"
    for one in moved:
        if not {"Expired", "AllocationEnded"} & set(words_of(one)):  # only what was killed may lose a turn
            assert all(resumption.dropped == 0 for resumption in one.resumptions), one.resumptions
    assert again["short"] < again["steady"]
    if count == MOST:
        assert again["short"] <= 0.15
        assert again["steady"] >= 0.45


async def test_a_walltime_of_a_third_of_a_rollout_completes_it(moving: Field) -> None:
    sampled = SampledTurns((moving.yard.folder / "turns").with_suffix(SAMPLED))
    budgets = {"init": {"timeoutSeconds": 10}, "run": {"timeoutSeconds": 450}, "eval": {"timeoutSeconds": 40}}
    await declare(moving, "third", WALLTIME, replicas=1, stages=budgets)
    await moving.yard.ready(moving.client)
    (id,) = await moving.client.submit([request("third", 0)])
    (ended,) = await moving.yard.gather(moving.client, [id], 1200)
    entries = (await moving.client.rollout_history(id)).entries
    lived = {entry.allocation for entry in entries if entry.event == HistoryEvent.LEASED}
    worked = sum(sum(turn.timings.values()) for turn in ended.turns)
    moves = [resumption.turn for resumption in ended.resumptions]
    print(
        f"\n{len(ended.turns)} turns of {worked:.0f} s in {len(lived)} allocations of {WALLTIME_SECONDS} s, in "
        f"{entries[-1].at - entries[0].at:.0f} s: it moved after turns {moves}, {len(sampled.of('third'))} turns sampled"
    )
    assert [entry.event for entry in entries].count(HistoryEvent.ENDED) == 1
    assert [(one.id, one.status) async for one in moving.client.rollouts(pool="third")] == [(id, Status.COMPLETED)]
    assert (ended.reward, ended.error, len(ended.turns)) == (1.0, None, THIRD_TURNS)
    assert worked > 3 * WALLTIME_SECONDS
    assert len(lived) > 3
    assert set(words_of(ended)) == {"WalltimeEnds"}
    check_ids(ended, set(sampled.of("third")))
    await check_files(moving, ended)
    assert len(sampled.of("third")) == THIRD_TURNS, "no turn was sampled again"
