"""Model servers and rollouts on a clock that jumps from event to event; a policy chooses each rollout's server.

A server samples for all its requests together, step by step. Prompts that are not in its cache delay the steps.
Requests that do not fit into its cache wait. Idle conversations stay in the cache; the longest unused is removed first.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulation.engine_times import OVERHEAD_SECONDS, PREFILL_SECONDS, step_seconds
from simulation.routing_traces import GROUP, Script

MOST_RUNNING = 64
REFUSED_SECONDS = 0.05
BEAT_SECONDS = 2.0


@dataclass(frozen=True)
class Fleet:
    capacities: tuple[float, ...]
    joins: float | None = None
    """Fraction of the arrivals after which one more server of capacity 1 joins."""
    dies: float | None = None
    """Fraction of the arrivals after which one server dies, with all its work."""
    slots: int = 96
    """Rollouts in flight for each unit of capacity: the node agents' capacity."""
    cache_tokens: int = 64_000
    """Cache of a server of capacity 1."""


@dataclass(frozen=True)
class Result:
    p50: float
    p90: float
    hits: float
    tokens_a_second: float
    rollouts_a_second: float
    """Rate during the second and third quarter of the ends, without the start and the last stragglers."""
    seconds: float

    @property
    def figures(self) -> tuple[float, ...]:
        return self.p50, self.p90, self.hits, self.tokens_a_second, self.rollouts_a_second, self.seconds


@dataclass(eq=False, slots=True)
class Rollout:
    id: str
    script: Script
    arrived: float
    server: str = ""
    turn: int = 0
    tokens: int = 0
    """Tokens of the conversation so far."""
    owed: int = 0
    """Tokens of this turn that must still be sampled."""
    must_move: bool = False


class Policy(Protocol):
    def __init__(self, sim: Sim) -> None: ...

    def joined(self, name: str, capacity: float) -> None: ...

    def warmed_up(self) -> None:
        """Count all servers that have joined so far as warmed up."""
        ...

    def start(self, rollout: Rollout) -> str | None:
        """Choose a server for a rollout that begins; None to let it wait."""
        ...

    def next_turn(self, rollout: Rollout) -> str:
        """Choose a server for its next turn."""
        ...

    def failed(self, rollout: Rollout) -> str:
        """Choose another server, because its own does not answer."""
        ...

    def ended(self, rollout: Rollout) -> None: ...

    def beat(self) -> None:
        """Called every BEAT_SECONDS."""
        ...


@dataclass(eq=False, slots=True)
class _Request:
    rollout: Rollout
    prompt: int
    ends: float = 0.0
    """Its end in the server's count of steps."""


class Server:
    def __init__(self, sim: Sim, name: str, capacity: float, cache_tokens: int) -> None:
        self.name, self.capacity = name, capacity
        self.cache_tokens = int(cache_tokens * capacity)
        self.dead = False
        self.waiting: deque[_Request] = deque()
        self.prompts: deque[tuple[_Request, float]] = deque()
        """(request, seconds of prompt left), processed one after the other."""
        self.sampling: list[tuple[float, int, _Request]] = []
        self._sim = sim
        self._steps, self._at, self._event = 0.0, 0.0, 0
        self._number = itertools.count()
        self._held = 0
        self._resting: OrderedDict[str, tuple[str, int]] = OrderedDict()
        """Rollout -> (group, tokens in the cache), the longest unused first."""
        self._rested = 0
        self._groups: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return len(self.prompts) + len(self.sampling)

    @property
    def usage(self) -> float:
        return self._held / self.cache_tokens

    def ask(self, rollout: Rollout) -> None:
        self._advance()
        self.waiting.append(_Request(rollout, rollout.tokens))
        self._settle()

    def die(self) -> list[Rollout]:
        """Return the rollouts whose requests broke off; their sampled tokens are kept."""
        self._advance()
        self.dead = True
        for ends, _, request in self.sampling:
            sampled = request.rollout.owed - int(max(0.0, ends - self._steps))
            request.rollout.tokens += sampled
            request.rollout.owed -= sampled
        broken = [r for r in (*self.waiting, *(p for p, _ in self.prompts), *(s[2] for s in self.sampling))]
        self.waiting.clear(), self.prompts.clear(), self.sampling.clear()
        self._event += 1
        return [request.rollout for request in broken]

    def _advance(self) -> None:
        left, self._at = self._sim.now - self._at, self._sim.now
        if self.prompts:
            request, seconds = self.prompts[0]
            self.prompts[0] = (request, seconds - left)
        elif self.sampling:
            self._steps += left * self.capacity / step_seconds(len(self.sampling))

    def _settle(self) -> None:
        """Admit the requests that fit, and schedule the next event."""
        while self.waiting and self.running < MOST_RUNNING * self.capacity and self._fits(self.waiting[0]):
            self._begin(self.waiting.popleft())
        self._event += 1
        event = self._event
        if self.prompts:
            self._sim.after(max(0.0, self.prompts[0][1]), lambda: self._happened(event))
        elif self.sampling:
            steps = max(0.0, self.sampling[0][0] - self._steps)
            self._sim.after(steps * step_seconds(len(self.sampling)) / self.capacity, lambda: self._happened(event))

    def _fits(self, request: _Request) -> bool:
        return self._held + request.prompt + request.rollout.owed <= self.cache_tokens or not self.running

    def _begin(self, request: _Request) -> None:
        rollout, group = request.rollout, request.rollout.script.group
        shared = min(request.prompt, rollout.script.turns[0].grown) if self._groups[group] else 0
        _, own = self._resting.pop(rollout.id, (group, 0))
        if own:
            self._rested -= own
            self._groups[group] -= 1
        cached = min(request.prompt - 1, max(own, shared))
        self._sim.count_prompt(request.prompt, cached)
        self._held += request.prompt + rollout.owed
        self._groups[group] += 1
        while self._resting and self._held + self._rested > self.cache_tokens:
            _, (gone, tokens) = self._resting.popitem(last=False)
            self._rested -= tokens
            self._groups[gone] -= 1
        seconds = PREFILL_SECONDS * (request.prompt - cached)
        self.prompts.append((request, seconds / self.capacity))

    def _happened(self, event: int) -> None:
        if event != self._event:
            return
        self._advance()
        if self.prompts:
            request, _ = self.prompts.popleft()
            request.ends = self._steps + request.rollout.owed
            heapq.heappush(self.sampling, (request.ends, next(self._number), request))
        else:
            _, _, request = heapq.heappop(self.sampling)
            self._steps = max(self._steps, request.ends)
            self._answered(request)
        self._settle()

    def _answered(self, request: _Request) -> None:
        rollout = request.rollout
        self._held -= request.prompt + rollout.owed
        rollout.tokens, rollout.owed = rollout.tokens + rollout.owed, 0
        self._resting[rollout.id] = (rollout.script.group, rollout.tokens)
        self._rested += rollout.tokens
        self._sim.answered(rollout)


class Sim:
    """The whole simulation. `rate`: arriving rollouts per second, in groups; None for all at once."""

    def __init__(
        self,
        fleet: Fleet,
        scripts: Sequence[Script],
        policy: Callable[[Sim], Policy],
        seed: int,
        *,
        rate: float | None,
    ) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self.servers: dict[str, Server] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._fleet = fleet
        self._free = int(fleet.slots * sum(fleet.capacities))
        self._queue: deque[Rollout] = deque()
        self._took: list[float] = []
        self._ended: list[float] = []
        self._prompt = self._cached = self._sampled = 0
        self.live = len(scripts)
        self.policy = policy(self)
        for number, capacity in enumerate(fleet.capacities):
            self.join(f"s{number}", capacity)
        self.policy.warmed_up()
        span = self._arrivals(scripts, rate)
        if fleet.joins is not None:
            self.after(fleet.joins * span, lambda: self.join("new", 1.0))
        if fleet.dies is not None:
            self.after(fleet.dies * span, lambda: self._kill("s3"))
        self.after(BEAT_SECONDS, self._beat)

    def _arrivals(self, scripts: Sequence[Script], rate: float | None) -> float:
        at = 0.0
        for first in range(0, len(scripts), GROUP):
            members = [Rollout(f"r{first + i}", s, 0.0) for i, s in enumerate(scripts[first : first + GROUP])]
            if rate is not None:
                at += self.chance.expovariate(rate / GROUP)
            self.after(at, lambda members=members: self._arrive(members))  # type: ignore[misc]
        return at

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), act))

    def run(self) -> Result:
        while self.live:
            self.now, _, act = heapq.heappop(self._events)
            act()
        took = sorted(self._took)
        n = len(took)
        return Result(
            took[n // 2],
            took[int(n * 0.9)],
            self._cached / self._prompt,
            self._sampled / self.now,
            (n // 2) / (self._ended[3 * n // 4] - self._ended[n // 4]),
            self.now,
        )

    def join(self, name: str, capacity: float) -> None:
        self.servers[name] = Server(self, name, capacity, self._fleet.cache_tokens)
        self.policy.joined(name, capacity)
        self._hand_out()

    def count_prompt(self, prompt: int, cached: int) -> None:
        self._prompt += prompt
        self._cached += cached

    def _kill(self, name: str) -> None:
        for rollout in self.servers[name].die():
            self._elsewhere(rollout)

    def _elsewhere(self, rollout: Rollout) -> None:
        rollout.server = self.policy.failed(rollout)
        self._ask(rollout)

    def _beat(self) -> None:
        self.policy.beat()
        self._hand_out()
        self.after(BEAT_SECONDS, self._beat)

    def _arrive(self, members: list[Rollout]) -> None:
        for rollout in members:
            rollout.arrived = self.now
        self._queue.extend(members)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue and self._free:
            server = self.policy.start(self._queue[0])
            if server is None:
                return
            rollout = self._queue.popleft()
            rollout.server = server
            self._free -= 1
            self._turn(rollout)

    def _turn(self, rollout: Rollout) -> None:
        turn = rollout.script.turns[rollout.turn]
        rollout.tokens += turn.grown
        rollout.owed = turn.sampled
        self._sampled += turn.sampled
        self._ask(rollout)

    def _ask(self, rollout: Rollout) -> None:
        if self.servers[rollout.server].dead:
            self.after(REFUSED_SECONDS, lambda: self._elsewhere(rollout))
        else:
            self.after(OVERHEAD_SECONDS, lambda: self._arrived(rollout))

    def _arrived(self, rollout: Rollout) -> None:
        server = self.servers[rollout.server]
        if server.dead:
            self._elsewhere(rollout)
        else:
            server.ask(rollout)

    def answered(self, rollout: Rollout) -> None:
        turn = rollout.script.turns[rollout.turn]
        rollout.turn += 1
        self.after(turn.tool_seconds, lambda: self._after_tools(rollout))

    def _after_tools(self, rollout: Rollout) -> None:
        if rollout.turn == len(rollout.script.turns):
            self._took.append(self.now - rollout.arrived)
            self._ended.append(self.now)
            self.live -= 1
            self._free += 1
            self.policy.ended(rollout)
            self._hand_out()
            return
        rollout.server = self.policy.next_turn(rollout)
        self._turn(rollout)
