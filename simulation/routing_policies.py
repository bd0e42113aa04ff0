"""Policies that choose a server: ours, by the server's own code, and four others."""

from __future__ import annotations

import abc
import hashlib
import heapq
import itertools
from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollyard.kinds.base import Reason
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.routing.endpoint_state import SLOW_START_SECONDS
from rollyard.server_process.parts_and_wakeups import Routing
from rollyard.store.base import RolloutRecord
from rollyard.wire.base import Identity
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import EngineHeartbeat, WeightsReport
from rollyard.wire.node import RechooseEndpoint, ToNode
from simulation.routing import Policy, Rollout, Sim

POOL = PoolKey("default", "policy")
PROBE_SECONDS = 0.1
LOST_SECONDS = 20.0
"""Time until Slurm reports the end of a dead server's job."""


class Ours:
    """The server's registry, leases and rebalancing, with simulated input."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._offset = 0.0
        parts = Routing(self, lease_seconds=1e9)
        self.endpoints, self.leases, self._choice = parts.endpoints, parts.leases, parts.choice
        self._rebalancer = parts.rebalancer(ask_external=lambda session, endpoint, urgent: False)
        self.endpoints.endpoint_suspected.connect(lambda endpoint: sim.after(PROBE_SECONDS, self._probe))
        self._records: dict[str, RolloutRecord] = {}
        self._live: dict[str, Rollout] = {}
        self._burst = -1.0, self._choice.burst(POOL)
        self._last = "", ""
        """The last group that arrived, and its server."""
        parts.node_agents.connect(
            ConnectedNodeAgent(_identity("node"), PoolKey("default", "swe"), self._heard, expel=lambda: None)
        )

    # the clock

    def time(self) -> float:
        return self._sim.now + self._offset

    monotonic = time

    def warmed_up(self) -> None:
        self._offset = SLOW_START_SECONDS
        self.beat()

    # the policy

    def joined(self, name: str, capacity: float) -> None:
        endpoint = Endpoint(id=name, url=f"https://{name}", model="m", weights_version="", tokenizer="/t")
        self.endpoints.register(POOL, _identity(name), endpoint, capacity=capacity)
        self._heartbeat(name)

    def start(self, rollout: Rollout) -> str | None:
        group, mate = self._last
        warm = [mate] if group == rollout.script.group else []
        if self._burst[0] != self._sim.now:  # simultaneous arrivals are placed together
            self._burst = self._sim.now, self._choice.burst(POOL)
        found = self._burst[1].checkout(warm=warm)
        if found is None:
            return None
        self._last = rollout.script.group, found.id
        record = RolloutRecord(
            "default", rollout.id, "", "", "swe", "code", None, 0, "train", 0, 0.0,
            holder="node/i", fence=1, endpoints={"policy": found.id},
        )  # fmt: skip
        self._records[rollout.id], self._live[rollout.id] = record, rollout
        self.leases.add(record)
        return found.id

    def next_turn(self, rollout: Rollout) -> str:
        return self._another(rollout, "") if rollout.must_move else rollout.server

    def failed(self, rollout: Rollout) -> str:
        self.endpoints.complain(rollout.server, "node", "refused")
        return self._another(rollout, rollout.server)

    def ended(self, rollout: Rollout) -> None:
        self.leases.discard(RolloutKey("default", rollout.id))
        del self._records[rollout.id], self._live[rollout.id]

    def beat(self) -> None:
        for name, server in self._sim.servers.items():
            if not server.dead:
                self._heartbeat(name)
        self.endpoints.expire()
        self._rebalancer.rebalance()
        self._probe()

    # parts of the server that are simulated

    def _heartbeat(self, name: str) -> None:
        server = self._sim.servers[name]
        beat = EngineHeartbeat(
            identity=_identity(name),
            url=f"https://{name}",
            ready=True,
            weights=WeightsReport(version="w"),
            running=server.running,
            waiting=len(server.waiting),
            kv_usage=server.usage,
        )
        self.endpoints.heartbeat(name, beat)

    def _probe(self) -> None:
        for state in self.endpoints.suspected_endpoints():
            dead = self._sim.servers[state.endpoint.id].dead
            self.endpoints.probed(state.endpoint.id, Reason("Unreachable") if dead else None)

    def _another(self, rollout: Rollout, failed: str) -> str:
        rollout.must_move = False
        found = self._choice.choose_again(POOL, rollout.server, failed)
        assert found is not None
        record = self._records[rollout.id] = replace(self._records[rollout.id], endpoints={"policy": found.id})
        self.leases.lease_changed(record)
        return found.id

    def _heard(self, message: ToNode) -> None:
        if isinstance(message, RechooseEndpoint):
            self._live[message.lease.id].must_move = True


def _identity(name: str) -> Identity:
    return Identity(allocation=name, namespace="default", uid=name, job_id="1", instance="i", node=name)


class _Plain(abc.ABC):
    """Knows the servers that joined, but not which of them are dead."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._names: list[str] = []

    def joined(self, name: str, capacity: float) -> None:
        self._names.append(name)

    def warmed_up(self) -> None:  # noqa: B027 - most policies do not care
        pass

    def start(self, rollout: Rollout) -> str | None:
        return self._choose(rollout)

    def next_turn(self, rollout: Rollout) -> str:
        return rollout.server

    def failed(self, rollout: Rollout) -> str:
        return next(name for name in (self._choose(rollout) for _ in itertools.count()) if name != rollout.server)

    def ended(self, rollout: Rollout) -> None:  # noqa: B027 - most policies do not care
        pass

    def beat(self) -> None:  # noqa: B027 - most policies do not care
        pass

    @abc.abstractmethod
    def _choose(self, rollout: Rollout) -> str: ...


class RoundRobin(_Plain):
    """Round-robin by rollout: its best form, because it keeps the prefix."""

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self._turn = itertools.count()

    def _choose(self, rollout: Rollout) -> str:
        return self._names[next(self._turn) % len(self._names)]


class RoundRobinByTurn(RoundRobin):
    """Round-robin by request, as a router in front of the servers does."""

    def next_turn(self, rollout: Rollout) -> str:
        return self._choose(rollout)


class Random(_Plain):
    def _choose(self, rollout: Rollout) -> str:
        return self._sim.chance.choice(self._names)


class ConsistentHash(_Plain):
    """A ring with a hundred points a server; the key is the task, so that its rollouts share a prompt's cache."""

    def joined(self, name: str, capacity: float) -> None:
        super().joined(name, capacity)
        self._ring = sorted((_hash(f"{n}/{point}"), n) for n in self._names for point in range(100))

    def _choose(self, rollout: Rollout) -> str:
        return self._ring[bisect(self._ring, (_hash(rollout.script.group), "")) % len(self._ring)][1]

    def failed(self, rollout: Rollout) -> str:
        at = bisect(self._ring, (_hash(rollout.script.group), ""))
        around = (self._ring[(at + i) % len(self._ring)][1] for i in range(len(self._ring)))
        return next(name for name in around if name != rollout.server)


class CounterHeap(_Plain):
    """A heap of counters as in ProRL Agent: each rollout adds one, and nothing is ever subtracted."""

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self._heap: list[tuple[int, int, str]] = []

    def joined(self, name: str, capacity: float) -> None:
        super().joined(name, capacity)
        heapq.heappush(self._heap, (0, len(self._names), name))

    def _choose(self, rollout: Rollout) -> str:
        count, number, name = self._heap[0]
        heapq.heapreplace(self._heap, (count + 1, number, name))
        return name


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


BASELINES: Mapping[str, Callable[[Sim], Policy]] = {
    "round-robin": RoundRobin,
    "round-robin by turn": RoundRobinByTurn,
    "random": Random,
    "consistent hash": ConsistentHash,
    "counter heap (ProRL)": CounterHeap,
}
POLICIES: Mapping[str, Callable[[Sim], Policy]] = {"ours": Ours, **BASELINES}
