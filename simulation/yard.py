"""Two pools on a clock that jumps from event to event: Slurm, node agents and model servers are simulated, decisions
are real.

Each look calls the server's functions (`account_gpu_hours`, `decide_size`, `plan_pool`, `new_allocation`) on real objects.
A decision takes effect a moment later, as in the server, so that work may arrive in between.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollyard.core.clock import as_datetime
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ConditionUpdate, evolve, set_conditions
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.values.quantity import walltime_seconds
from rollyard.reconcilers.autoscaler import FLAP_WINDOW_SECONDS, Metric, ScalerMemory
from rollyard.reconcilers.demand import LoadReport, inference_metrics, max_workers, rollout_metrics, sessions
from rollyard.reconcilers.plan import Member, PoolPlan, plan_pool
from rollyard.reconcilers.pool import new_allocation
from rollyard.reconcilers.pool_size import account_gpu_hours, decide_size

START = 1_700_000_000.0
ACT_SECONDS = 0.5
"""Time from a look to its effect, and from a submit to a look."""
REST_SECONDS = 300.0
"""Time between looks while nothing changes."""
BOOT_SECONDS = {"RolloutPool": 20.0, "InferencePool": 90.0}
ENGINE_STOP_SECONDS = 10.0
SILENCE_SECONDS = 8.0
"""Time after a restart of the server until the model servers have reported their load again."""
SEQUENCES = 64
"""Sequences that one model server decodes together."""


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = START
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), act))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = until


class Slurm:
    """A limited number of jobs at once, first come first served, each after a wait caused by other users."""

    def __init__(self, clock: Clock, chance: random.Random, jobs: int, wait_seconds: float) -> None:
        self._clock, self._chance = clock, chance
        self._free, self._wait = jobs, wait_seconds
        self._queue: deque[Callable[[], bool]] = deque()

    def submit(self, start: Callable[[], bool]) -> None:
        """`start` returns whether the job was still needed."""
        wait = self._chance.expovariate(1 / self._wait) if self._wait else 0.0

        def eligible() -> None:
            self._queue.append(start)
            self._schedule()

        self._clock.after(wait, eligible)

    def ended(self) -> None:
        self._free += 1
        self._schedule()

    def _schedule(self) -> None:
        while self._free > 0 and self._queue:
            self._free -= self._queue.popleft()()


@dataclass
class Faults:
    """Violations of the rules, and the number of changes of size."""

    above_max_minutes: float = 0.0
    below_min_minutes: float = 0.0
    busy_killed: int = 0
    changes: int = 0
    direction: int = 0
    """Direction of the last change."""
    turns: list[float] = field(default_factory=list)
    """Times at which the direction changed."""

    def changed(self, now: float, by: int) -> None:
        direction = 1 if by > 0 else -1
        self.changes += 1
        if self.direction == -direction:
            self.turns.append(now)
        self.direction = direction

    @property
    def most_turns(self) -> int:
        """Return the largest number within any one hour."""
        return max((sum(at - FLAP_WINDOW_SECONDS < t <= at for t in self.turns) for at in self.turns), default=0)


class SimulatedPool(ABC):
    """Allocations and their jobs; the subclasses simulate the processes in them."""

    def __init__(self, clock: Clock, slurm: Slurm, pool: Pool) -> None:
        self.clock, self.pool, self.faults = clock, pool, Faults()
        self.allocations: dict[str, Allocation] = {}
        self._slurm = slurm
        self._memory: ScalerMemory | None = None
        self._job = itertools.count(1)
        self._looked_at = clock.now

    # for the kinds to implement

    @abstractmethod
    def load(self, name: str) -> int: ...

    @abstractmethod
    def metrics(self) -> list[Metric]: ...

    @abstractmethod
    def ready(self, name: str) -> None:
        """Called when its process is ready."""

    @abstractmethod
    def told_to_drain(self, name: str) -> None:
        """Called when it accepts no new work any more."""

    @abstractmethod
    def gone(self, name: str) -> None:
        """Called when its job has ended."""

    # the simulated server

    def restart_server(self) -> None:
        self._memory = None

    def members(self) -> list[Member]:
        return [Member(a, a.status.ready, self.load(name)) for name, a in self.allocations.items()]

    def look(self) -> None:
        now, members = self.clock.now, self.members()
        ledger = account_gpu_hours(self.pool.status.gpu_ledger, self.allocations.values(), now)
        scale = decide_size(self.pool, self._memory, self.metrics(), ledger, now)
        self._memory = scale.memory
        plan = plan_pool(self.pool, members, scale.desired, now, slurm_known=True)
        self._judge(members, plan, scale.desired)
        ends, replicas = plan.ends, evolve(self.pool.status.replicas, desired=scale.desired)
        update = {
            "observed_generation": 1,
            "replicas": replicas,
            "next_index": plan.next_index,
            "template_hash": ends.template,
            "failures": ends.failures,
            "last_failure_time": as_datetime(ends.last_failure) if ends.last_failure is not None else None,
            "interruptions": ends.interruptions,
            "last_interruption_time": as_datetime(ends.last_interruption)
            if ends.last_interruption is not None
            else None,
            "startup_seconds": plan.startup,
            "startup_measured_at": as_datetime(plan.startup_at) if plan.startup_at is not None else None,
            "scaling": scale.record,
            "gpu_ledger": ledger,
        }
        self.pool = evolve(self.pool, status=evolve(self.pool.status, **update))
        self.clock.after(ACT_SECONDS, lambda: self._act(plan))

    def _judge(self, members: Sequence[Member], plan: PoolPlan, desired: int) -> None:
        """Check the rules between two looks, which the first of them must ensure."""
        bounds, status, now = self.pool.spec.autoscaling, self.pool.status, self.clock.now
        assert bounds is not None
        active = {m.name for m in members if m.active}
        surge = sum(m.allocation.spec.successor_of in active for m in members if m.active)
        minutes, self._looked_at = (now - self._looked_at) / 60, now
        self.faults.above_max_minutes += minutes * (len(active) - surge > bounds.max_replicas)
        wanted = len(active) - surge + len(plan.create)
        self.faults.below_min_minutes += minutes * (
            desired < bounds.min_replicas
            or (wanted < bounds.min_replicas and plan.ends.failures + plan.ends.interruptions == 0)
        )
        if desired != status.replicas.desired:
            self.faults.changed(now, desired - status.replicas.desired)

    def _act(self, plan: PoolPlan) -> None:
        for index in plan.create:
            self._submit(new_allocation(self.pool, index))
        for successor in plan.successors:
            self._submit(new_allocation(self.pool, successor.index, of=successor.of, after_job=successor.after_job))
        for name in plan.drain:
            self._drain(name)
        for name in plan.delete:
            self._delete(name)

    # jobs

    def change(self, name: str, part: str, **update: Any) -> Allocation:
        old = self.allocations[name]
        new = evolve(old, **{part: evolve(getattr(old, part), **update)})
        self.allocations[name] = new
        return new

    def _submit(self, allocation: Allocation) -> None:
        name, now = allocation.metadata.name, as_datetime(self.clock.now)
        self.allocations[name] = allocation
        self.change(name, "metadata", uid=name)
        self.change(name, "status", intents=1, intended_at=now, job_state="PENDING", job_id=str(next(self._job)))
        self._slurm.submit(lambda: self._start(name))

    def _start(self, name: str) -> bool:
        if name not in self.allocations:
            return False
        limit, now = walltime_seconds(self.pool.spec.allocation.time_limit), self.clock.now
        self.change(
            name,
            "status",
            job_state="RUNNING",
            node="n1",
            start_time=as_datetime(now),
            end_time=as_datetime(now + limit),
        )
        self.clock.after(BOOT_SECONDS[self.pool.kind], lambda: self._come_up(name))
        self.clock.after(limit, lambda: self.end(name, "TIMEOUT"))
        return True

    def running(self, name: str) -> bool:
        return name in self.allocations and self.allocations[name].status.job_state == "RUNNING"

    def _come_up(self, name: str) -> None:
        if self.running(name):
            self.change(name, "status", ready=True, ready_at=as_datetime(self.clock.now))
            self.ready(name)
            if self.allocations[name].spec.drain:
                self.told_to_drain(name)

    def _drain(self, name: str) -> None:
        if not self.running(name):
            return
        allocation = self.change(name, "spec", drain=True)
        now = as_datetime(self.clock.now)
        told = set_conditions(
            allocation.status.conditions, [ConditionUpdate("Draining", True, "Drain")], generation=1, now=now
        )
        self.change(name, "status", conditions=told)
        if allocation.status.ready:
            self.told_to_drain(name)

    def _delete(self, name: str) -> None:
        if name in self.allocations:
            if self.running(name):
                self.faults.busy_killed += self.load(name) > 0
                self.end(name, "CANCELLED")
            del self.allocations[name]

    def end(self, name: str, state: str) -> None:
        """End a job: by itself, by Slurm or by a broken node."""
        if self.running(name):
            self.change(name, "status", job_state=state, ready=False, end_time=as_datetime(self.clock.now))
            self.gone(name)
            self._slurm.ended()


@dataclass(eq=False)
class Rollout:
    arrived: float
    seconds: dict[Stage, float]
    done: Callable[[], None]
    stage: Stage = Stage.INIT
    begun: float | None = None
    ended: float | None = None
    endpoint: str | None = None


class Engines(SimulatedPool):
    """An InferencePool: the sessions on each server, and the servers' reports."""

    pool: InferencePool
    users: RolloutSide

    def __init__(self, clock: Clock, slurm: Slurm, pool: Pool) -> None:
        super().__init__(clock, slurm, pool)
        self._pinned: dict[str, set[Rollout]] = {}
        self._heard_again = -math.inf

    def restart_server(self) -> None:
        super().restart_server()
        self._heard_again = self.clock.now + SILENCE_SECONDS

    def load(self, name: str) -> int:
        return len(self._pinned.get(name, ()))

    def metrics(self) -> list[Metric]:
        bounds, users = self.pool.spec.autoscaling, self.users
        assert bounds is not None
        heard = [self._report(n) for n, a in self.allocations.items() if a.status.ready_at and Member(a, True).active]
        return inference_metrics(bounds, sessions(users.pool.spec, users.queued(), users.in_flight()), heard)

    def _report(self, name: str) -> LoadReport:
        if self.clock.now < self._heard_again:
            return LoadReport()
        return LoadReport(max(0, self.load(name) - SEQUENCES), min(1.0, self.load(name) / SEQUENCES))

    def ready(self, name: str) -> None:
        self._pinned[name] = set()
        self.users.dispatch()

    def pin(self, rollout: Rollout) -> bool:
        """Pin the rollout to the server with the fewest sessions."""
        able = [name for name in self._pinned if not self.allocations[name].spec.drain]
        if not able:
            return False
        rollout.endpoint = min(able, key=self.load)
        self._pinned[rollout.endpoint].add(rollout)
        return True

    def release(self, rollout: Rollout) -> None:
        self._pinned.get(rollout.endpoint or "", set()).discard(rollout)
        rollout.endpoint = None

    def told_to_drain(self, name: str) -> None:
        """Move the sessions to other servers, if there are any."""
        for rollout in list(self._pinned[name]):
            self._pinned[name].discard(rollout)
            if not self.pin(rollout):
                self._pinned[name].add(rollout)
        if not self._pinned[name]:
            self.clock.after(ENGINE_STOP_SECONDS, lambda: self.end(name, "COMPLETED"))
        else:
            self.clock.after(ENGINE_STOP_SECONDS, lambda: self._drain_on(name))

    def _drain_on(self, name: str) -> None:
        if self.running(name):
            self.told_to_drain(name)

    def gone(self, name: str) -> None:
        for rollout in self._pinned.pop(name, set()):
            if not self.pin(rollout):
                rollout.endpoint = None  # parked; it continues when there is a server again


class SimulatedNodeAgent:
    """One node agent: three stages, each with its workers and its waiting rollouts."""

    def __init__(self, side: RolloutSide, name: str) -> None:
        spec = side.pool.spec
        self.widths = {stage: max_workers(spec, stage) for stage in Stage}
        self.held: set[Rollout] = set()
        self._side, self._name = side, name
        self._waiting: dict[Stage, deque[Rollout]] = {stage: deque() for stage in Stage}
        self._busy = Counter[Stage]()

    @property
    def room(self) -> int:
        late = self._busy[Stage.EVAL] + len(self._waiting[Stage.EVAL])
        return self.widths[Stage.INIT] + self.widths[Stage.RUN] - len(self.held) + late

    def take(self, rollout: Rollout) -> None:
        self.held.add(rollout)
        self._waiting[rollout.stage].append(rollout)
        self._go()

    def _go(self) -> None:
        for stage in Stage:
            while self._waiting[stage] and self._busy[stage] < self.widths[stage]:
                rollout = self._waiting[stage].popleft()
                self._busy[stage] += 1
                self._side.clock.after(rollout.seconds[stage], lambda r=rollout, s=stage: self._done(r, s))  # type: ignore[misc]

    def _done(self, rollout: Rollout, stage: Stage) -> None:
        if self._side.node_agents.get(self._name) is not self:
            return
        self._busy[stage] -= 1
        if stage is Stage.EVAL:
            self.held.discard(rollout)
            self._side.finished(rollout)
        else:
            rollout.stage = Stage.RUN if stage is Stage.INIT else Stage.EVAL
            self._waiting[rollout.stage].append(rollout)
            if stage is Stage.RUN:
                self._side.engines.release(rollout)
        self._go()
        self._side.moved(self._name)


class RolloutSide(SimulatedPool):
    """A RolloutPool with its queue and its node agents."""

    pool: RolloutPool
    engines: Engines

    def __init__(self, clock: Clock, slurm: Slurm, pool: Pool) -> None:
        super().__init__(clock, slurm, pool)
        self.node_agents: dict[str, SimulatedNodeAgent] = {}
        self.all: list[Rollout] = []
        self._queue: deque[Rollout] = deque()

    def load(self, name: str) -> int:
        return len(self.node_agents[name].held) if name in self.node_agents else 0

    def queued(self) -> Counter[Stage]:
        return Counter(rollout.stage for rollout in self._queue)

    def in_flight(self) -> Counter[Stage]:
        return Counter(rollout.stage for agent in self.node_agents.values() for rollout in agent.held)

    @property
    def busy(self) -> bool:
        return bool(self._queue) or any(agent.held for agent in self.node_agents.values())

    def metrics(self) -> list[Metric]:
        return rollout_metrics(self.pool.spec, self.queued(), self.in_flight())

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        self.all += rollouts
        self._queue += rollouts
        self.dispatch()

    def dispatch(self) -> None:
        """Fill the node agents, the emptiest first, if the rest of their walltime covers the budgets."""
        if not self._queue:
            return
        now, budget = self.clock.now, self.pool.spec.stages.budget_seconds
        able = [agent for name, agent in self.node_agents.items() if agent.room > 0 and self._takes(name, now + budget)]
        while self._queue and able:
            rollout, agent = self._queue[0], max(able, key=lambda a: a.room)
            if rollout.stage is not Stage.EVAL and not self.engines.pin(rollout):
                return
            self._queue.popleft()
            rollout.begun = rollout.begun or now
            agent.take(rollout)
            able = [a for a in able if a.room > 0]

    def _takes(self, name: str, until: float) -> bool:
        allocation = self.allocations[name]
        assert allocation.status.end_time is not None
        return not allocation.spec.drain and allocation.status.end_time.timestamp() >= until

    def finished(self, rollout: Rollout) -> None:
        rollout.ended = self.clock.now
        rollout.done()

    def moved(self, name: str) -> None:
        """Called after every change of work there."""
        if self.allocations[name].spec.drain and not self.node_agents[name].held:
            self.end(name, "COMPLETED")
        self.dispatch()

    def ready(self, name: str) -> None:
        self.node_agents[name] = SimulatedNodeAgent(self, name)
        self.dispatch()

    def told_to_drain(self, name: str) -> None:
        if not self.node_agents[name].held:
            self.end(name, "COMPLETED")

    def gone(self, name: str) -> None:
        """Return its rollouts to the queue; those that finished RUN are only scored again."""
        agent = self.node_agents.pop(name, None)
        for rollout in sorted(agent.held if agent else (), key=lambda r: r.arrived, reverse=True):
            if rollout.stage is not Stage.EVAL:
                self.engines.release(rollout)
                rollout.stage = Stage.INIT
            self._queue.appendleft(rollout)
        self.dispatch()


class Demand(Protocol):
    """A source of rollouts."""

    def begin(self, yard: Yard) -> None: ...


class Yard:
    """Both pools, their Slurm, and the sources of demand."""

    def __init__(
        self,
        inference: InferencePool,
        rollouts: RolloutPool,
        *,
        seed: int,
        jobs: int = 64,
        wait_seconds: float = 60.0,
        look_seconds: float = 16.0,
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = Clock()
        slurm = Slurm(self.clock, self.chance, jobs, wait_seconds)
        self.engines, self.side = Engines(self.clock, slurm, inference), RolloutSide(self.clock, slurm, rollouts)
        self.engines.users, self.side.engines = self.side, self.engines
        self._every, self._due = look_seconds, self.clock.now
        self.looked: Callable[[], None] = lambda: None
        """Called after each look."""
        self.clock.after(0.0, self._look)

    @property
    def pools(self) -> tuple[SimulatedPool, SimulatedPool]:
        return self.engines, self.side

    def _look(self) -> None:
        if self.clock.now < self._due:
            return  # another look happened in between
        self._due = math.inf
        for pool in self.pools:
            pool.look()
        self.looked()
        self._look_after(self._every if self._moves() else max(self._every, REST_SECONDS))

    def _look_after(self, seconds: float) -> None:
        if self.clock.now + seconds < self._due:
            self._due = self.clock.now + seconds
            self.clock.after(seconds, self._look)

    def _moves(self) -> bool:
        there = [a for pool in self.pools for a in pool.allocations.values()]
        return self.side.busy or any(not a.status.ready and not a.status.is_ended for a in there)

    def submit(self, count: int, done: Callable[[], None] = lambda: None) -> None:
        """Submit `count` rollouts now; `done` is called at the end of each."""
        self.side.submit([self._rollout(done) for _ in range(count)])
        self._look_after(ACT_SECONDS)

    def _rollout(self, done: Callable[[], None]) -> Rollout:
        stages, chance = self.side.pool.spec.stages, self.chance
        seconds = {
            Stage.INIT: chance.uniform(2, 20),
            Stage.RUN: chance.lognormvariate(math.log(180), 0.7),
            Stage.EVAL: chance.uniform(5, 60),
        }
        limits = {stage: getattr(stages, stage.value.lower()).timeout_seconds for stage in Stage}
        return Rollout(self.clock.now, {s: min(t, limits[s]) for s, t in seconds.items()}, done)

    def restart_server(self) -> None:
        for pool in self.pools:
            pool.restart_server()
        self._look_after(ACT_SECONDS)

    def break_a_node(self) -> None:
        """Break the node of some job, with all its work."""
        pool = self.chance.choice(self.pools)
        if running := sorted(name for name in pool.allocations if pool.running(name)):
            pool.end(self.chance.choice(running), "NODE_FAIL")
            self._look_after(ACT_SECONDS)
