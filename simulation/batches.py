"""Batches on a clock that jumps from end to end of rollouts: durations and rewards are made, decisions are the server's.

`Settlement` decides, on tables in memory: what to draw, in which order, which groups are informative, what is delivered
and carried over. The queue is served in the server's order. Slots have equal speed.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from rollyard.kinds.batch import BatchKey, BatchRequest, DatasetRef
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Status
from rollyard.server.batches.advance import Acknowledged, Ticked
from rollyard.server.batches.settlement import Settlement
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import BatchRecord, LengthSums, SeriesRecord
from rollyard.store.rollout_transaction import Transaction
from simulation.batch_tables import MemoryTables

MEDIAN_SECONDS = 100.0
TOKENS_A_SECOND = 10
POOL = PoolKey("default", "pool")
DATASET = "tasks"


@dataclass(frozen=True)
class Load:
    """A dataset, and the slots that work on it."""

    name: str
    slots: int
    between: float
    """Sigma of the lognormal durations between tasks."""
    within: float
    """Sigma of the lognormal durations between the rollouts of one task."""
    rates: tuple[float, float]
    """Parameters of the Beta distribution of the tasks' pass rates."""
    hard_longer: bool = False
    """Whether the median duration falls linearly with the pass rate, from 2.5 to 0.5 times the usual one."""
    tasks: int = 2000
    n: int = 8
    target: int = 32


class Tasks:
    """The tasks of a load. The rollouts of a task in an epoch are the same in every run with the same seed."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load = load
        self._seed = seed
        made = random.Random(seed)
        self._rates = [made.betavariate(*load.rates) for _ in range(load.tasks)]
        self._medians = [
            MEDIAN_SECONDS * math.exp(made.gauss(0, load.between)) * (2.5 - 2 * rate if load.hard_longer else 1.0)
            for rate in self._rates
        ]

    def group(self, task: int, epoch: int) -> list[tuple[float, float]]:
        """Return seconds and reward of each rollout."""
        made = random.Random(f"{self._seed}/{epoch}/{task}")
        median, rate = self._medians[task], self._rates[task]
        return [
            (median * math.exp(made.gauss(0, self.load.within)), float(made.random() < rate))
            for _ in range(self.load.n)
        ]

    @property
    def informative(self) -> float:
        """Expected share of informative groups."""
        return sum(self._shares) / self.load.tasks

    @property
    def floor(self) -> float:
        """Seconds to the target if all slots are always busy and every task is drawn equally often."""
        rollout = math.exp(self.load.within**2 / 2) * sum(self._medians) / self.load.tasks
        return rollout * self.load.n * self.load.target / self.informative / self.load.slots

    @property
    def _shares(self) -> list[float]:
        n = self.load.n
        return [1 - rate**n - (1 - rate) ** n for rate in self._rates]


def is_informative(group: list[tuple[float, float]]) -> bool:
    return len({reward for _, reward in group}) > 1


@dataclass(frozen=True)
class Sums:
    """Sums since the start, over rollouts."""

    at: float
    busy: float
    """Seconds of slots."""
    delivered: LengthSums
    informative_rollouts: int
    informative_seconds: float
    """Seconds of the rollouts in all informative groups that were drawn, each with its whole length."""


class SimulatedPool:
    """One pool with one series of batches."""

    def __init__(self, tasks: Tasks, request: BatchRequest) -> None:
        self.now = 0.0
        self.load = tasks.load
        self._tasks = tasks
        self._request = request
        self._free = tasks.load.slots
        self._queue: list[tuple[float, int, str]] = []
        self._running: list[tuple[float, int, str]] = []
        self._lengths: dict[str, tuple[float, float]] = {}
        """Seconds and reward of each rollout that has not ended."""
        self._busy = 0.0
        self._drawn: set[str] = set()
        self._informative_rollouts, self._informative_seconds = 0, 0.0
        self._batches = itertools.count()
        self._tables = MemoryTables(tasks.load.tasks)
        self._tx = cast(Transaction, self._tables)
        self._tables.put_series(SeriesRecord(POOL.namespace, DATASET, DATASET, DATASET, 0, tasks.load.tasks))

    @property
    def series(self) -> SeriesRecord:
        found = self._tables.series(POOL.namespace, DATASET)
        assert found is not None
        return found

    @property
    def sums(self) -> Sums:
        started = sum(self.now - at for at in self._tables.started.values())
        delivered = self.series.delivered_lengths
        return Sums(self.now, self._busy + started, delivered, self._informative_rollouts, self._informative_seconds)

    def batch(self, key: BatchKey) -> BatchRecord:
        found = self._tables.batch(key)
        assert found is not None
        return found

    def begin(self) -> BatchKey:
        """Create the next batch of the series, as `BatchService.create` does."""
        id = f"b{next(self._batches)}"
        record = BatchRecord(
            POOL.namespace, id, "", self._request.model_dump_json(), POOL.name, DATASET, created_at=self.now
        )

        def create(settlement: Settlement) -> None:
            key = settlement.begin(record, self.series)
            settlement.advance(key, Ticked(self.now, self.load.slots))

        self._transact(create)
        return record.key

    def staleness(self, after: int) -> list[int]:
        """Return the staleness of each delivered group after this delivery."""
        return [group.staleness or 0 for group in self._tables.delivered if (group.delivery or 0) > after]

    def acknowledge(self, key: BatchKey, upto: int) -> None:
        self._transact(lambda settlement: settlement.advance(key, Acknowledged(self.now, upto)))

    def end_next(self, until: float = math.inf) -> bool:
        """Go on to the next end of a rollout, or to `until` if this comes first; return whether a rollout ended."""
        while self._running and self._running[0][2] not in self._lengths:
            heapq.heappop(self._running)  # cancelled
        if not self._running or self._running[0][0] > until:
            assert until < math.inf, "nothing runs, and nothing is drawn"
            self.now = until
            return False
        self.now, _, id = heapq.heappop(self._running)
        seconds, reward = self._lengths[id]
        summary = {"run": seconds, "tokens": round(seconds * TOKENS_A_SECOND), "turns": 1}
        record = self._tables.rollouts[id]
        ended = self._tx.put(replace(record, status=Status.COMPLETED, reward=reward, summary=summary))
        self._stop(id)
        self._transact(lambda settlement: None, [ended])
        return True

    def _transact(self, act: Callable[[Settlement], None], ended: Sequence[RolloutRecord] = ()) -> None:
        changes = RecordChanges(ended=deque(ended))
        settlement = Settlement(self._tx, changes, self.now)
        act(settlement)
        settlement.write()
        for _, after, _ in changes.stepped:
            if after.status.terminal:
                self._stop(after.id)
        for record in changes.inserted:
            self._queue_rollout(record)
        self._fill()

    def _stop(self, id: str) -> None:
        del self._lengths[id]
        if (at := self._tables.started.pop(id, None)) is not None:
            self._busy += self.now - at
            self._free += 1

    def _queue_rollout(self, record: RolloutRecord) -> None:
        assert record.group is not None
        found = self._tables.groups[record.group]
        group = self._tasks.group(found.task_index, found.epoch)
        if found.id not in self._drawn and is_informative(group):
            self._informative_rollouts += len(group)
            self._informative_seconds += sum(seconds for seconds, _ in group)
        self._drawn.add(found.id)
        self._lengths[record.id] = group[record.sample_index]
        heapq.heappush(self._queue, (record.queue_rank, record.seq, record.id))

    def _fill(self) -> None:
        while self._free and self._queue:
            rank, seq, id = heapq.heappop(self._queue)
            if id not in self._lengths:
                continue  # cancelled
            ranks = self._tx.queue_ranks(POOL)
            self._tx.put_queue_ranks(POOL, replace(ranks, served=max(ranks.served, rank)))
            self._free -= 1
            self._tables.started[id] = self.now
            heapq.heappush(self._running, (self.now + self._lengths[id][0], seq, id))


@dataclass(frozen=True)
class Figures:
    """One rule in the steady state."""

    seconds: float
    """Mean time of a batch or a training step."""
    busy: float
    """Share of the slots' time that was used."""
    wasted: float
    """Share of the sampled tokens that is in no delivered group."""
    staleness: float
    """Mean number of training steps between the draw of a group and its use."""
    bias: float
    """Mean seconds of delivered rollouts, divided by those of all rollouts in informative groups that were drawn."""
    reported_bias: float | None = None
    """The same, over all batches, as the server reports it."""
    over: float = 0.0
    """Share of a stream's delivered groups that are staler than its bound."""
    stalest: int = 0
    """Greatest staleness of a stream's delivered groups."""
    idle: float = 0.0
    """Share of the trainer's time in which it waits."""


def run_batches(tasks: Tasks, request: BatchRequest, batches: int, warm: int) -> Figures:
    """Run batches one after another. The first `warm` batches are not counted."""
    pool = SimulatedPool(tasks, request)
    stale = 0.0
    before = pool.sums
    for number in range(batches):
        if number == warm:
            before = pool.sums
        key = pool.begin()
        while not (batch := pool.batch(key)).status.terminal:
            pool.end_next()
        if number >= warm:
            stale += batch.staleness / batch.delivered
    counted = batches - warm
    return _figures(pool, before, counted, stale / counted)


def run_stream(tasks: Tasks, request: BatchRequest, train_seconds: float, steps: int, warm: int) -> Figures:
    """Run one stream with a trainer that uses `step_groups` groups in each step. The first `warm` steps are not counted."""
    assert request.step_groups is not None
    pool = SimulatedPool(tasks, request)
    key = pool.begin()
    idle, before, stale = 0.0, pool.sums, 0
    for number in range(steps):
        if number == warm:
            idle, before, stale = 0.0, pool.sums, pool.batch(key).staleness
        wanted, asked = (number + 1) * request.step_groups, pool.now
        while pool.batch(key).delivered < wanted:
            pool.end_next()
        idle += pool.now - asked
        until = pool.now + train_seconds
        while pool.end_next(until):
            pass
        pool.acknowledge(key, wanted)
    batch = pool.batch(key)
    delivered = (steps - warm) * request.step_groups
    found = pool.staleness(warm * request.step_groups)[:delivered]
    over = sum(one > request.max_staleness for one in found) / delivered
    figures = _figures(pool, before, steps - warm, (batch.staleness - stale) / delivered)
    return replace(figures, over=over, stalest=max(found), idle=idle / (pool.now - before.at))


def _figures(pool: SimulatedPool, before: Sums, counted: int, staleness: float) -> Figures:
    after, load = pool.sums, pool.load
    seconds, busy = after.at - before.at, after.busy - before.busy
    delivered_seconds = after.delivered.seconds - before.delivered.seconds
    delivered = delivered_seconds / (after.delivered.rollouts - before.delivered.rollouts)
    drawn = (after.informative_seconds - before.informative_seconds) / (
        after.informative_rollouts - before.informative_rollouts
    )
    series = pool.series
    whole = series.whole_lengths.seconds / series.whole_lengths.rollouts
    reported = series.delivered_lengths.seconds / series.delivered_lengths.rollouts / whole
    return Figures(
        seconds / counted,
        busy / (seconds * load.slots),
        1 - delivered_seconds / busy,
        staleness,
        delivered / drawn,
        reported,
    )


def plain_batches(tasks: Tasks, batches: int) -> Figures:
    """Run rounds of `target` groups until `target` of them are informative. Each round waits for its last rollout."""
    load, drawn = tasks.load, _draws(tasks)
    now = busy = used = 0.0
    delivered: list[float] = []
    informative: list[float] = []
    for _ in range(batches):
        found: list[float] = []
        while len(found) < load.target:
            slots = [now] * load.slots
            for group in itertools.islice(drawn, load.target):
                for seconds, _ in group:
                    heapq.heapreplace(slots, slots[0] + seconds)
                    busy += seconds
                if is_informative(group):
                    found.append(sum(seconds for seconds, _ in group))
            now = max(slots)
        informative += found
        delivered += found[: load.target]
        used += sum(found[: load.target])
    bias = sum(delivered) / len(delivered) / (sum(informative) / len(informative))
    return Figures(now / batches, busy / (now * load.slots), 1 - used / busy, 0.0, bias)


def _draws(tasks: Tasks) -> Iterator[list[tuple[float, float]]]:
    for epoch in itertools.count():
        order = list(range(tasks.load.tasks))
        random.Random(epoch).shuffle(order)
        yield from (tasks.group(task, epoch) for task in order)


def request(load: Load, **fields: object) -> BatchRequest:
    """Build the request of a batch with the load's target; of a stream if `step_groups` is given."""
    target = None if "step_groups" in fields else load.target
    return BatchRequest.model_validate(
        {"pool": POOL.name, "n": load.n, "target": target, "dataset": DatasetRef(name=DATASET), **fields}
    )
