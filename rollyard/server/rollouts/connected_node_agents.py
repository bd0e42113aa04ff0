"""Node agents that are connected now, with their free capacity and their connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.core.aio import Signal
from rollyard.core.clock import Clock
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey, Stage
from rollyard.wire.base import Identity
from rollyard.wire.node import (
    DRAIN_REASON,
    WALLTIME_REASON,
    CapacityRequest,
    Deadline,
    Drain,
    ImageStorage,
    KeptSandbox,
    LeaseRef,
    SandboxCounts,
    ToNode,
)


@dataclass(slots=True, eq=False)
class ConnectedNodeAgent:
    """One live connection."""

    identity: Identity
    pool: PoolKey
    send: Callable[[ToNode], None]
    """Function that queues a message; never blocks."""
    expel: Callable[[], None] = field(kw_only=True)
    """Function that ends the connection, and orders the node agent's process to exit."""
    free_init: int = 0
    free_eval: int = 0
    kinds: frozenset[str] = frozenset()
    """Task kinds for which the node agent has handlers; empty until the node agent has sent the list."""
    resumable_kinds: frozenset[str] = frozenset()
    """Those of `kinds` whose rollouts can go on elsewhere."""
    failed_kinds: Mapping[str, str] = field(default_factory=dict)
    """Task kind -> reason why the node agent cannot load the handler."""
    ready_images: set[str] = field(default_factory=set)
    """Names, in normal form, of the images of registries that are complete on the node."""
    kept: dict[RolloutKey, KeptSandbox] = field(default_factory=dict)
    """Sandboxes of failed attempts that the node agent keeps."""
    prefetched_images: Sequence[str] = ()
    """Images that the node agent was last asked to pull."""
    capacity: int = 0
    """Number of sandboxes that fit into the allocation; 0 if unknown. With 0, the widths are never changed."""
    widths: dict[Stage, int] = field(default_factory=dict)
    """Widths as last reported; empty until the first report."""
    in_hand: Mapping[Stage, int] = field(default_factory=dict)
    """Number of rollouts that the node agent holds, by stage, as last reported."""
    sandboxes: SandboxCounts = field(default_factory=SandboxCounts)
    images: ImageStorage = field(default_factory=ImageStorage)
    memory_shortage: str = ""
    """Sentence that says why the job's memory allows fewer sandboxes than `capacity`; empty if it does not."""
    image_shortage: str = ""
    """Sentence that says what sandboxes of the node cannot do with an image; empty if they can do all."""
    preparing: str = ""
    """Work that the node agent does once on its node, while rollouts in INIT wait for it; empty if there is none."""
    grants: int = 0
    """Number of grants sent on this connection."""
    draining: bool = False
    walltime_ends: float | None = None
    """End of the allocation's walltime (Unix seconds), once known."""
    told_end: tuple[float, str] | None = None
    """End of the allocation that the node agent was told last (Unix seconds), and why it ends."""
    unreadable: int = 0
    """Number of messages of this connection that could not be read."""
    heard_at: float | None = None
    """Monotonic seconds of the last heartbeat."""

    @property
    def holder(self) -> str:
        """Name of the node agent in records: the allocation's uid and the process. The node agent's access token is
        valid only for this uid, so no other allocation can use the name."""
        return f"{self.identity.uid}/{self.identity.instance}"


class ConnectedNodeAgents:
    """All connections, by holder. A reconnect replaces the earlier connection."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_holder: dict[str, ConnectedNodeAgent] = {}
        self._by_uid: dict[str, ConnectedNodeAgent] = {}
        self._draining: dict[str, float] = {}
        """Uid -> end of the drain's grace (Unix seconds)."""
        self._walltime_ends: dict[str, float] = {}
        self.node_agent_changed = Signal[ConnectedNodeAgent]()
        """Signal: a node agent connected, disconnected, or drains."""
        self.room_offered = Signal[PoolKey]()
        """Signal: a node agent of this pool may have more free capacity."""
        self.work_moved = Signal[ConnectedNodeAgent]()
        """Signal: the numbers of rollouts in a node agent's stages changed."""
        self.widths_changed = Signal[ConnectedNodeAgent]()
        """Signal: stages of a node agent became wider or narrower."""

    def connect(self, agent: ConnectedNodeAgent) -> None:
        agent.draining = agent.identity.uid in self._draining
        agent.walltime_ends = self._walltime_ends.get(agent.identity.uid)
        self._by_holder[agent.holder] = self._by_uid[agent.identity.uid] = agent
        if agent.draining:
            agent.send(Drain())
        self._tell_end(agent)
        self.node_agent_changed.emit(agent)

    def disconnect(self, agent: ConnectedNodeAgent) -> None:
        if self._by_holder.get(agent.holder) is agent:
            del self._by_holder[agent.holder]
            if self._by_uid.get(agent.identity.uid) is agent:
                del self._by_uid[agent.identity.uid]
            self.node_agent_changed.emit(agent)

    def heartbeat(self, agent: ConnectedNodeAgent, held: Iterable[LeaseRef], widths: Mapping[str, int]) -> None:
        """Store the time, the reported widths, and the number of reported leases in each stage. Emit `work_moved` and
        `widths_changed` for what changed."""
        agent.heard_at = self._clock.monotonic()
        in_hand = Counter(ref.stage for ref in held)
        known = {stage: widths[stage] for stage in Stage if stage in widths}
        if agent.in_hand != in_hand:
            agent.in_hand = in_hand
            self.work_moved.emit(agent)
        if agent.widths != known:
            agent.widths = known
            self.widths_changed.emit(agent)

    def request_capacity(self, agent: ConnectedNodeAgent, request: CapacityRequest) -> None:
        """Set the free capacity. A request is ignored if the node agent sent it before our last grant arrived; another
        request follows. `room_offered` is emitted only if there is more free capacity, or if the task kinds changed."""
        if request.grants is None or request.grants == agent.grants:
            before = agent.free_init, agent.free_eval, agent.kinds
            agent.free_init, agent.free_eval, agent.kinds = request.init, request.eval, frozenset(request.kinds)
            if request.init > before[0] or request.eval > before[1] or agent.kinds != before[2]:
                self.room_offered.emit(agent.pool)

    def width(self, stage: Stage) -> int:
        """Return the number of stage workers of all node agents."""
        return sum(agent.widths.get(stage, 0) for agent in self._by_holder.values())

    def sandboxes(self, pool: PoolKey | None = None) -> SandboxCounts:
        """Return the sum of the numbers of sandboxes of a pool's node agents, or of all."""
        counts = [agent.sandboxes for agent in self._by_holder.values() if pool is None or agent.pool == pool]
        return SandboxCounts(**{name: sum(getattr(one, name) for one in counts) for name in SandboxCounts.model_fields})

    def image_storage(self, pool: PoolKey | None = None) -> ImageStorage:
        """Return the sums over the nodes of a pool's node agents, or of all. Node agents of one node share a cache, so the
        newest report of a node counts; evictions are counted by each node agent."""
        agents = [agent for agent in self._by_holder.values() if pool is None or agent.pool == pool]
        by_node = {a.identity.node: a.images for a in sorted(agents, key=lambda agent: agent.heard_at or 0.0)}
        evicted = {"evicted_layers", "evicted_bytes"}
        reports = {
            name: [a.images for a in agents] if name in evicted else by_node.values()
            for name in ImageStorage.model_fields
        }
        return ImageStorage(**{name: sum(getattr(one, name) for one in found) for name, found in reports.items()})

    def slots(self, pool: PoolKey) -> int:
        """Number of rollouts that a pool's node agents can have in INIT and RUN at once. Draining node agents are not
        counted."""
        node_agents = [a for a in self.of_pool(pool) if not a.draining]
        return sum(a.widths.get(stage, 0) for a in node_agents for stage in (Stage.INIT, Stage.RUN))

    def drain(self, uid: str, ends: float) -> None:
        """Grant this allocation no more leases, and order its node agent to drain, also if the node agent connects only
        later. `ends`: end of the grace in which it may finish its work (Unix seconds)."""
        begins, agent = uid not in self._draining, self.of_allocation(uid)
        self._draining[uid] = ends
        if agent is not None and begins:
            agent.draining = True
            agent.send(Drain())
            self.node_agent_changed.emit(agent)
        if agent is not None:
            self._tell_end(agent)

    def _tell_end(self, agent: ConnectedNodeAgent) -> None:
        """Tell the node agent when its allocation ends, if this has changed."""
        uid = agent.identity.uid
        known = ((self._walltime_ends.get(uid), WALLTIME_REASON), (self._draining.get(uid), DRAIN_REASON))
        ends = min(((at, why) for at, why in known if at is not None), default=None)
        if ends is not None and agent.told_end != ends:
            agent.told_end = ends
            agent.send(Deadline(seconds=ends[0] - self._clock.time(), reason=ends[1]))

    def set_walltime_end(self, uid: str, at: float) -> None:
        """Set the end of the walltime of this allocation's job."""
        if self._walltime_ends.get(uid) != at:
            self._walltime_ends[uid] = at
            if (agent := self.of_allocation(uid)) is not None:
                agent.walltime_ends = at
                self._tell_end(agent)

    def expel(self, uid: str) -> None:
        """Close the allocation's connections, and order their processes to exit. The caller knows from Slurm that the
        job has ended, so a process that is still connected runs on a node that Slurm has lost."""
        for agent in [a for a in self._by_holder.values() if a.identity.uid == uid]:
            agent.expel()

    def forget(self, uid: str) -> None:
        """Drop the drain order and the walltime's end of an ended allocation. A live connection is kept."""
        self._draining.pop(uid, None)
        self._walltime_ends.pop(uid, None)

    def kept(self, key: RolloutKey, pool: PoolKey) -> tuple[ConnectedNodeAgent, KeptSandbox] | None:
        """Return the kept sandbox of a rollout's last failed attempt, and the node agent that keeps it. Node agents of other
        pools than the rollout's are not believed."""
        found = [(agent, agent.kept[key]) for agent in self.of_pool(pool) if key in agent.kept]
        return max(found, key=lambda pair: pair[1].lease.fence, default=None)

    def get(self, holder: str) -> ConnectedNodeAgent | None:
        return self._by_holder.get(holder)

    def of_allocation(self, uid: str) -> ConnectedNodeAgent | None:
        return self._by_uid.get(uid)

    def of_pool(self, pool: PoolKey) -> list[ConnectedNodeAgent]:
        return [a for a in self._by_holder.values() if a.pool == pool]

    def all(self) -> list[ConnectedNodeAgent]:
        return list(self._by_holder.values())

    def kinds(self) -> set[str]:
        """Return the task kinds for which a connected node agent has a handler."""
        return {kind for agent in self._by_holder.values() for kind in agent.kinds}
