"""Batches, a stream and weights updates, while processes of every kind are killed at random."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.tiny_policy.families import sample_code, sample_math
from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.kinds.batch import BatchRequest, BatchStatus, DatasetRef
from rollyard.kinds.rollout import Sampling
from rollyard.kinds.weights import Mode
from rollyard.trajectory import Trajectory
from rollyard.trajectory.group import Group
from tests.support.live_weights import current_version, other_weights
from tests.support.offline_replay import assert_no_fault
from tests.support.recompute import differences
from tests.support.stored_groups import stored_groups
from tests.support.storm import VICTIMS, Storm
from tests.support.yard import MODEL, Yard

pytestmark = pytest.mark.slow(90)

TASKS, N = 2000, 4
HOT = Sampling(temperature=2.0)
"""Sampling with which some rollouts of most tasks fail."""
MODES: tuple[Mode, ...] = ("Drain", "Pause", "Abort")
CLOSE = 0.02
ACCEPTED = 256
"""Number of trajectories that are checked together."""


@dataclass
class Training:
    """Trainers of one run, and what they saw. They go on until the storm is over and enough rollouts have ended."""

    client: AsyncClient
    storm: Storm
    folder: Path
    seconds: float
    """Time over which the weights updates are spread."""
    updates: int
    target: int
    """Groups of a batch, and of a step of the stream."""
    rollouts: int
    limit: float
    """Seconds after which fewer rollouts are enough."""
    begun: float = field(default_factory=time.monotonic)
    updated: int = 0
    weights: dict[str, Path] = field(default_factory=dict)
    """Folder of each version."""
    paused: set[str] = field(default_factory=set)
    """Versions that came in mode Pause."""
    delivered: dict[str, list[Group]] = field(default_factory=dict)
    """Delivered groups of each batch."""
    ended: Counter[str] = field(default_factory=Counter)
    """Ids of the terminal records in a stream that was open all the time."""

    @property
    def enough(self) -> bool:
        whole = len(self.ended) >= self.rollouts or time.monotonic() - self.begun >= self.limit
        return self.storm.over and self.updated == self.updates and whole

    async def read_ends(self) -> None:
        async for _, columns in self.client.stream_columns():
            self.ended.update(sample["id"] for sample in columns.samples)

    async def by_targets(self) -> None:
        """Train by batches that follow one another and take over what the one before left."""
        number = 0
        while not self.enough or number < 2:
            id, number = f"step-{number}", number + 1
            batch = self.client.batch(
                BatchRequest(
                    id=id, pool="demo", n=N, target=self.target, sampling=HOT, dataset=DatasetRef(name="mixed", seed=5)
                )
            )
            self.delivered[id] = [group async for group in batch]
            assert batch.view is not None
            assert batch.view.status is BatchStatus.COMPLETED

    async def by_stream(self) -> None:
        batch = self.client.batch(
            BatchRequest(
                id="stream", pool="demo", n=N, step_groups=self.target, sampling=HOT, dataset=DatasetRef(name="math")
            )
        )
        groups = []
        async for group in batch:
            groups.append(group)
            if group.delivery % self.target == 0:
                await batch.acknowledge()
                if self.enough:
                    await batch.cancel()
        self.delivered["stream"] = groups

    async def update_weights(self) -> None:
        first = await current_version(self.client)
        self.weights[first] = MODEL
        for number in range(self.updates):
            due = self.begun + self.seconds * (number + 0.5) / self.updates
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            version, mode = f"v{number + 2}", MODES[number % len(MODES)]
            self.weights[version] = await asyncio.to_thread(
                other_weights, MODEL, self.folder / version, number + 2, 0.02
            )
            if mode == "Pause":
                self.paused.add(version)
            async with self.client.weights("policy", folder=self.folder / "pushed", mode=mode) as weights:
                await weights.push(self.weights[version], version)
            self.updated += 1


async def test_every_rollout_ends_once_and_every_batch_reaches_its_target_while_everything_is_killed(
    yard: Yard, long_run: bool
) -> None:
    scratch = yard.folder / "s"
    scratch.mkdir()
    async with yard.client() as client:
        place = {"allocation": {"scratch": str(scratch)}}
        # One warm sandbox at a time: the storm cannot tell it from others, and shall hit those that rollouts use.
        sandbox = {"runtime": "auto" if long_run else "bubblewrap", "warm": {"max": 1}}
        run = {} if long_run else {"stages": {"run": {"workers": {"min": 2, "max": 2}}}}
        await yard.apply(client, policy=place, demo={**place, **run, "sandbox": sandbox})
        await yard.ready(client)
        rng = random.Random(7)
        await client.put_dataset("mixed", [rng.choice([sample_math, sample_code])(rng, True) for _ in range(TASKS)])
        await client.put_dataset("math", [sample_math(rng, True) for _ in range(TASKS)])
        if long_run:
            storm = Storm(yard, 11, pause=(2.0, 6.0), seconds=600)
            training = Training(
                client, storm, yard.folder, seconds=600, updates=20, target=32, rollouts=5000, limit=3600
            )
        else:
            storm = Storm(yard, 11, pause=(0.3, 1.0), most=len(VICTIMS))
            training = Training(client, storm, yard.folder, seconds=4, updates=2, target=2, rollouts=0, limit=0)
        async with running(training.read_ends()):
            async with asyncio.timeout(training.limit + 600), storm, asyncio.TaskGroup() as trainers:
                for trainer in (training.by_targets, training.by_stream, training.update_weights):
                    trainers.create_task(trainer())
            await yard.until(lambda: nothing_runs(client), 600)
            ids = [rollout.id async for rollout in client.rollouts()]

            async def all_read() -> bool:
                return len(training.ended) == len(ids)

            await yard.until(all_read)
        print(f"\n{len(ids)} rollouts, {len(training.delivered)} batches, killed {dict(storm.killed)}")
        assert storm.killed.keys() == set(VICTIMS)
        assert training.ended == Counter(ids), "one terminal record each"

        assert set(len(training.delivered[id]) for id in training.delivered if id != "stream") == {training.target}
        for groups in training.delivered.values():
            assert [g.delivery for g in groups] == list(range(1, len(groups) + 1))
            assert all(len(set(g.rewards) - {None}) > 1 for g in groups)
        given = Counter(g.id for groups in training.delivered.values() for g in groups)
        assert set(given.values()) == {1}

        await check_trajectories(client, training, len(ids))
        await yard.delete_pools(client)
        await yard.until(lambda: yard.nothing_left(client))

    async def only_the_server() -> bool:
        assert yard.server is not None
        return not any(p.runs for p in storm.seen) and yard.processes() == [yard.server.pid]

    await yard.until(only_the_server)
    assert str(yard.folder) not in Path("/proc/mounts").read_text()
    assert list(scratch.iterdir()) == []
    yard.stop()
    for series in ("mixed", "math"):
        drawn = await stored_groups(yard.data, series)
        assert max(Counter((g.epoch, g.task_index, g.tries) for g in drawn).values()) == 1, "no task twice"
        assert {f"{g.id}.{sample}" for g in drawn for sample in range(N)} == {
            id for id in ids if id.startswith(f"{series}-")
        }


async def nothing_runs(client: AsyncClient) -> bool:
    """Return whether no rollout is queued, leased, or held by a node agent or an engine."""
    top = await client.top()
    counts = await client.counts()
    return (
        not any(counts[name] for name in ("queued", "INIT", "RUN", "EVAL"))
        and not any(stage.in_flight for pool in top.rollout_pools for stage in pool.stages.values())
        and not any(
            endpoint.sessions or endpoint.running for pool in top.inference_pools for endpoint in pool.endpoints
        )
    )


async def check_trajectories(client: AsyncClient, training: Training, count: int) -> None:
    """Read all results again, and check the tokens and the reward of each."""
    statuses, scored = Counter[str](), list[Trajectory]()
    async for _, trajectory in client.stream():
        statuses[trajectory.status] += 1
        assert (trajectory.reward is not None) == trajectory.status.scored
        if trajectory.status.scored:
            assert trajectory.error is None
            scored.append(trajectory)
        if len(scored) == ACCEPTED or statuses.total() == count:
            await asyncio.to_thread(check_scored, scored, training)
            scored = []
        if statuses.total() == count:
            break
    print(f"{dict(statuses)}; {len(training.weights)} versions")


def check_scored(trajectories: list[Trajectory], training: Training) -> None:
    for trajectory in trajectories:
        assert_no_fault(trajectory)
        found = differences([trajectory], training.weights, training.paused)
        assert max(found) < CLOSE, trajectory.id
