"""One round of grants for one pool: which queued rollouts are leased to which node agents and endpoints.

A round runs in the thread of the store's writer. So it changes only copies: an `NodeAgentRoom` of each node agent's free
capacity, and a `Burst` of each InferencePool's ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from rollyard.kinds.rollout import CHECK, RolloutRequest, Stage
from rollyard.kinds.rollout_pool import POLICY_ROLE, SPARE_SECONDS, RolloutPool, RolloutPoolSpec
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.history import LeaseChoice, cannot_move, moves_without_turn
from rollyard.server.rollouts.missing_image import tried
from rollyard.server.rollouts.step import SUSPECT_LOSSES, Granted, is_suspect, step
from rollyard.server.routing.endpoint_choice import Burst
from rollyard.server.routing.staleness import ServedVersions, allowed_versions
from rollyard.store.base import GroupVersions, RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.wire.endpoint import Endpoint

MAX_PER_GRANT = 256
"""Greatest number of rollouts that one round grants for a stage."""
MAX_QUEUE_PAGES = 4
"""Greatest number of queue pages that one round reads for a stage. The first pages may have only unsuitable rollouts."""
MAX_MOVES_WITHOUT_TURN = 4
"""If so many leases in a row were handed back without a new saved turn, a rollout waits for walltime for all its budgets."""
STAGES_TO_COME = {Stage.INIT: ("init", "run", "eval"), Stage.EVAL: ("eval",)}


@dataclass(frozen=True, slots=True)
class GrantedLease:
    node_agent: ConnectedNodeAgent
    record: RolloutRecord
    endpoints: Mapping[str, Endpoint]


@dataclass(slots=True)
class NodeAgentRoom:
    """A copy of a node agent's free capacity, made at the start of a round."""

    node_agent: ConnectedNodeAgent
    free: dict[Stage, int]
    """Free capacity, by the stage with which a lease begins."""
    held: int
    """Number of leases that the node agent has, including those of this round."""
    reserved: bool = False
    """True: the node agent gets no more leases in this round, because a rollout that must run alone has got this
    node agent or waits for it."""

    def can_take(self, record: RolloutRecord, pool: RolloutPoolSpec, now: float) -> bool:
        """Whether `has_capacity` is true and, if the rollout must run alone, the node agent has no lease."""
        return not (is_suspect(record) and self.held) and self.has_capacity(record, pool, now)

    def has_capacity(self, record: RolloutRecord, pool: RolloutPoolSpec, now: float) -> bool:
        """Whether the node agent is not reserved, and has free capacity, a handler for this task kind, and enough
        walltime for the remaining stages."""
        if self.reserved or self.free[record.stage] <= 0 or record.task_kind not in self.node_agent.kinds:
            return False
        if self.node_agent.walltime_ends is None:
            return True
        left = self.node_agent.walltime_ends - now - SPARE_SECONDS
        pools = {word: float(getattr(pool.stages, word).timeout_seconds) for word in STAGES_TO_COME[record.stage]}
        if left >= sum(pools.values()):
            return True
        return left >= needed_seconds(record, pool, self.node_agent.resumable_kinds)  # slow: it parses the request

    def take(self, record: RolloutRecord) -> None:
        self.free[record.stage] -= 1
        self.held += 1
        self.reserved |= is_suspect(record)


def needed_seconds(record: RolloutRecord, pool: RolloutPoolSpec, resumable: Set[str]) -> float:
    """Return the seconds of the remaining stages' budgets. A rollout's own budget counts if it is less than the pool's. A
    rollout that can go on elsewhere after each turn needs INIT and a turn alone, unless it has moved without a new turn too
    often. `resumable`: task kinds whose rollouts can go on elsewhere."""
    request, stages = RolloutRequest.model_validate_json(record.request), pool.stages
    pools = {word: float(getattr(stages, word).timeout_seconds) for word in STAGES_TO_COME[record.stage]}
    budgets = {word: min(limit, getattr(request.budgets, f"{word}_seconds") or limit) for word, limit in pools.items()}
    whole = sum(budgets.values())
    if record.stage is Stage.EVAL or not can_move(record, request, pool, resumable):
        return whole
    if moves_without_turn(record) >= MAX_MOVES_WITHOUT_TURN:
        return whole
    return min(whole, stages.turn_seconds(budgets["init"], request.agent.tool_timeout_seconds))


def can_move(record: RolloutRecord, request: RolloutRequest, pool: RolloutPoolSpec, resumable: Set[str]) -> bool:
    """Whether the rollout can go on elsewhere after each turn. Saved turns prove it."""
    if record.saved_turns:
        return True
    wanted = pool.resume == request.agent.resume == "auto" and record.mode != CHECK
    return wanted and record.task_kind in resumable and not cannot_move(record)


class Round:
    """One round, in one transaction."""

    def __init__(
        self,
        tx: Transaction,
        now: float,
        pool: RolloutPool,
        rooms: list[NodeAgentRoom],
        alone: int,
        bursts: Mapping[str, Burst],
        served: ServedVersions,
    ) -> None:
        """`alone`: number of node agents that this round may reserve. `bursts`: one for each InferencePool. `served`: the
        weights versions of the endpoints."""
        self._tx = tx
        self._now = now
        self._pool = pool
        self._rooms = rooms
        self._alone = alone
        self._bursts = bursts
        self._served = served
        self._due = {one.image: one for one in tx.missing_images(pool.pool_key) if one.until <= now}
        """Missing images that one rollout may try again."""
        self._tried: set[str] = set()
        """Images in `_due` for which this round has found a rollout."""
        self._no_endpoint = False
        """True: a role has no ready endpoint with room, so only rollouts that need none can be granted."""
        self._mates: dict[str, Mapping[str, Endpoint]] = {}
        """Group -> endpoints of its rollout that was granted last in this round."""

    def grant(self) -> list[GrantedLease]:
        """Choose rollouts, and store their grants."""
        granted = [*self._grant(Stage.EVAL), *self._grant(Stage.INIT)]
        if self._no_endpoint:
            granted += self._grant(Stage.INIT)
        ranks = self._tx.queue_ranks(self._pool.pool_key)
        latest = max((g.record.queue_rank for g in granted), default=0.0)
        if latest > ranks.served:
            self._tx.put_queue_ranks(self._pool.pool_key, replace(ranks, served=latest))
        return granted

    def _grant(self, stage: Stage) -> list[GrantedLease]:
        granted: list[GrantedLease] = []
        for record, versions in self._queued(stage):
            found = self._choose_room(record)
            if found is None:
                continue
            room, choice = found
            reasons: dict[str, str] = {}
            endpoints = (
                self._choose_endpoints(record, room.node_agent, versions, reasons) if stage is Stage.INIT else {}
            )
            if endpoints is not None:
                granted.append(self._take(record, room, endpoints, replace(choice, endpoints=reasons)))
            elif versions is None:
                self._no_endpoint = True
                break  # no later record that needs an endpoint can be granted
            if len(granted) == MAX_PER_GRANT:
                break
        return granted

    def _queued(self, stage: Stage) -> Iterator[tuple[RolloutRecord, frozenset[str] | None]]:
        """Yield queued records in the order of the queue, each with the weights versions that it may use; None if it may
        use all. Reads at most MAX_QUEUE_PAGES pages of the queue."""
        last: RolloutRecord | None = None
        for _ in range(MAX_QUEUE_PAGES):
            takers = [room for room in self._rooms if room.free[stage] > 0]
            if not takers:
                return
            room_left = sum(room.free[stage] for room in takers)
            limit = MAX_PER_GRANT if last is not None else min(room_left, MAX_PER_GRANT)
            page = self._tx.queued(
                [self._pool.pool_key],
                [stage],
                self._now,
                limit,
                kinds={kind for room in takers for kind in room.node_agent.kinds},
                minima=self._served.minimum_versions if stage is Stage.INIT else None,
                losses_below=SUSPECT_LOSSES if self._may_reserve_no_more else None,
                default_image=self._default_image,
                after=last,
                mode=CHECK if self._no_endpoint else None,
            )
            for record in page:
                if is_suspect(record) and self._may_reserve_no_more:
                    continue
                versions = self._versions(record) if stage is Stage.INIT else None
                if versions == frozenset():
                    continue  # the rollout may use only weights versions that no endpoint offers now
                if stage is Stage.INIT and not self._tried.isdisjoint(self._images(record)):
                    continue  # another rollout tries the image
                yield record, versions
            if len(page) < limit:
                return
            last = page[-1]

    def _choose_room(self, record: RolloutRecord) -> tuple[NodeAgentRoom, LeaseChoice] | None:
        """Return the node agent with the greatest free capacity, and the reason for the choice; None if no node agent can
        take the record now. A node agent is then reserved for a rollout that must run alone."""
        stage, pool = record.stage, self._pool.spec
        able = [room for room in self._rooms if room.can_take(record, pool, self._now)]
        if not able:
            if is_suspect(record) and not any(room.reserved for room in self._rooms):
                fitting = (room for room in self._rooms if room.has_capacity(record, pool, self._now))
                if (least := min(fitting, key=lambda room: room.held, default=None)) is not None:
                    least.reserved = True
            return None
        images = self._images(record)
        ready = [room for room in able if images and room.node_agent.ready_images.issuperset(images)]
        room = max(ready or able, key=lambda room: room.free[stage])
        usual = "MostRoom" if len(ready) in (0, len(able)) else "HasImage"
        why = "Exclusive" if is_suspect(record) else usual if len(able) > 1 else "OnlyOne"
        return room, LeaseChoice(why, room.free[stage], len(able))

    def _choose_endpoints(
        self, record: RolloutRecord, agent: ConnectedNodeAgent, versions: frozenset[str] | None, reasons: dict[str, str]
    ) -> dict[str, Endpoint] | None:
        """Return one allowed endpoint for each role; None if a role has none. `reasons` gets the reason of each choice. A check
        needs no endpoint.

        The endpoints of the group's rollout that was granted last are preferred, because all rollouts of a group begin
        with the same prompt, which is then in the endpoint's prefix cache.
        """
        if record.mode == CHECK:
            return {}
        mate = self._mates.get(record.group or "", {})
        chosen: dict[str, Endpoint] = {}
        for role, name in self._pool.spec.inference.items():
            warm = [record.endpoints[role]] if role in record.endpoints else []
            warm += [mate[role].id] if role in mate else []
            allow = _having(versions) if versions is not None and role == POLICY_ROLE else None
            found = self._bursts[name].checkout(node=agent.identity.node, warm=warm, allow=allow)
            if found is None:
                return None
            chosen[role] = found
            reasons[role] = self._bursts[name].reason(found, node=agent.identity.node, warm=warm)
        return chosen

    def _take(
        self, record: RolloutRecord, room: NodeAgentRoom, endpoints: dict[str, Endpoint], choice: LeaseChoice
    ) -> GrantedLease:
        """Store the grant. Everything that later records of this round depend on changes here."""
        room.take(record)
        if record.stage is Stage.INIT:
            if record.group is not None:
                self._mates[record.group] = endpoints
            for missing in (self._due[image] for image in self._images(record) if image in self._due):
                self._tried.add(missing.image)
                self._tx.put_missing_image(tried(missing, self._now))
        agent, who = room.node_agent, room.node_agent.identity
        ids = {role: endpoint.id for role, endpoint in endpoints.items()}
        version = endpoints[POLICY_ROLE].weights_version if POLICY_ROLE in endpoints else None
        after, _ = step(record, Granted(self._now, agent.holder, who.node, ids, version, who.allocation, choice))
        return GrantedLease(agent, self._tx.put(after), endpoints)

    @property
    def _may_reserve_no_more(self) -> bool:
        return sum(room.reserved for room in self._rooms) >= self._alone

    @property
    def _default_image(self) -> str:
        return self._pool.spec.sandbox.default_image or ""

    def _images(self, record: RolloutRecord) -> list[str]:
        return record.images(self._default_image)

    def _versions(self, record: RolloutRecord) -> frozenset[str] | None:
        grouped = record.group is not None and record.weights is not None and record.weights.same
        group = self._tx.group_versions(record.namespace, str(record.group)) if grouped else GroupVersions()
        return allowed_versions(record, group, self._served)


def _having(versions: frozenset[str]) -> Callable[[Endpoint], bool]:
    return lambda endpoint: endpoint.weights_version in versions
