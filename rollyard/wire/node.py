"""Messages between the server and node agents: over one WebSocket, and large ones over plain HTTP."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_serializer
from pydantic_core import from_json

from rollyard.kinds.rollout import AgentSpec, Budgets, RolloutError, RolloutKey, Sampling, Stage, Task
from rollyard.kinds.rollout_pool import SandboxTemplate, Stages
from rollyard.wire.base import PROTOCOL, Identity, WireMessage
from rollyard.wire.endpoint import Endpoint

RESULT_CONTENT_TYPE = "application/vnd.rollyard.result"
NODE_AGENT_ERROR = "NodeAgentError"
"""Reason of a hand-back after an error in the node agent's code, which the rollout may have caused."""
UNREADABLE_LEASE_REASON = "UnreadableLease"
"""Reason of a hand-back of a lease with fields that the node agent is too old to know."""
CLOSE_HELLO_EXPECTED = 4408
"""Close code of the WebSocket: the first message was no hello, or it came too late."""
CLOSE_FENCED = 4409
"""Close code of the WebSocket: this process must exit, because another one has taken its place or its job has ended."""
CLOSE_INCOMPATIBLE = 4426
"""Close code of the WebSocket: one side is too old for the other; the reason says which."""
MAX_ARTIFACT_BYTES = 4 << 20
MAX_RESULT_BYTES = 256 << 20


class LeaseKey(NamedTuple):
    """`LeaseRef` without the stage, which changes during the lease."""

    namespace: str
    id: str
    fence: int


class LeaseRef(WireMessage):
    """Name of one lease. It is void once the rollout has a lease with a higher fence."""

    namespace: str
    id: str
    fence: int
    stage: Stage = Stage.INIT

    @property
    def rollout(self) -> RolloutKey:
        return RolloutKey(self.namespace, self.id)

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.namespace, self.id, self.fence)


class Lease(LeaseRef):
    """Rollout for a node agent, with everything needed to run it."""

    attempt: int
    sample_index: int
    task: Task
    agent: AgentSpec
    sampling: Sampling
    budgets: Budgets
    endpoints: dict[str, Endpoint] = {}
    """Role -> model server."""

    @field_serializer("agent", "sampling", "budgets")
    def _dump_without_defaults(self, given: AgentSpec | Sampling | Budgets) -> dict[str, Any]:
        """Users' fields are parsed strictly, so an older node agent gets a new field only if a user has set it."""
        return given.model_dump(mode="json", exclude_defaults=True)


# node agent -> server, over one WebSocket


class Hello(WireMessage):
    type: Literal["hello"] = "hello"
    identity: Identity
    held: list[LeaseRef] = []
    """All leases held, including those with unacknowledged results. Leases that are not listed were never received."""
    widths: dict[str, int] = {}
    """Stage -> stage workers; empty at the first hello."""
    places: int = 0
    """Sandboxes that fit into the allocation, from its first `Welcome`. 0 before that, and if it is unknown."""
    kinds: list[str] = []
    """Task kinds for which this node agent has handlers. Empty if it sends them in `CapacityRequest` only."""
    failed_kinds: dict[str, str] = {}
    """Task kind -> reason why its handler cannot be loaded here."""


class CapacityRequest(WireMessage):
    """Number of further leases that the node agent can accept now. It replaces the earlier number."""

    type: Literal["capacity_request"] = "capacity_request"
    init: int = 0
    eval: int = 0
    kinds: list[str] = []
    """Task kinds for which this node agent has handlers."""
    grants: int | None = None
    """Number of Grants received on this connection. The server ignores the message while another Grant is on its way."""


class Heartbeat(WireMessage):
    """Renewal of all named leases. A lease that is not named may still be on its way in a Grant, so it is not ended at once."""

    type: Literal["heartbeat"] = "heartbeat"
    held: list[LeaseRef]
    widths: dict[str, int] = {}
    """Stage -> stage workers."""
    sent_at: float = 0.0
    """The sender's monotonic clock. `Renewed` returns it."""


class HandBack(WireMessage):
    """Return of an unfinished rollout without a fault: preemption, drain or end of the walltime. It costs no attempt."""

    type: Literal["hand_back"] = "hand_back"
    lease: LeaseRef
    reason: str
    message: str = ""
    """Type and text of the error, if `reason` is NODE_AGENT_ERROR."""


# server -> node agent


class Welcome(WireMessage):
    type: Literal["welcome"] = "welcome"
    protocol: int = PROTOCOL
    epoch: int
    lease_seconds: float
    """Seconds without a renewal after which a node agent stops the work of a lease."""
    sandbox: SandboxTemplate
    stages: Stages
    places: int = 0
    """Sandboxes of this kind that fit into the allocation. As with `sandbox` and `stages`, the first welcome counts."""
    columns: int = 0
    """Newest version of `wire/columns.py` that the server reads; 0 if it reads results only as JSON."""
    lost: list[LeaseRef] = []
    """Leases of `hello` that are void. Their work must stop."""


class UnreadableLease(WireMessage):
    """Lease that arrived but cannot be parsed."""

    lease: LeaseRef | None
    """Name of the lease; None if not even this can be parsed."""
    why: str


class Grant(WireMessage):
    type: Literal["grant"] = "grant"
    leases: list[Lease]
    unread: list[UnreadableLease] = Field(default=[], exclude=True)
    """Leases that could not be parsed. It is never sent."""

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Parse each lease by itself, so that a lease with newer fields does not spoil the others."""
        found = data.get("leases")
        if not isinstance(found, list):
            return super().from_wire(data)
        leases: list[Lease] = []
        unread: list[UnreadableLease] = []
        for one in found:
            try:
                leases.append(Lease.model_validate(one))
            except ValidationError as error:
                unread.append(UnreadableLease(lease=_ref(one), why=str(error)))
        return cls(leases=leases, unread=unread)


class Renewed(WireMessage):
    type: Literal["renewed"] = "renewed"
    sent_at: float
    lost: list[LeaseRef] = []


class Cancel(WireMessage):
    type: Literal["cancel"] = "cancel"
    lease: LeaseRef


class RechooseEndpoint(WireMessage):
    """Request to ask again for the endpoint of this role before the next turn, because there may be a better one.

    It is a hint: the server chooses and records an endpoint when the node agent asks (`NewEndpoint` without `failed`).
    """

    type: Literal["rechoose_endpoint"] = "rechoose_endpoint"
    lease: LeaseRef
    role: str
    now: bool = False
    """True: the endpoint does not answer, so ask at once. A waiting request continues at the new one with its ids so far."""


class Drain(WireMessage):
    type: Literal["drain"] = "drain"


class Resize(WireMessage):
    """Desired widths of the stages. Heartbeats report the actual widths."""

    type: Literal["resize"] = "resize"
    widths: dict[str, int]
    """Stage -> stage workers. A stage that is not named keeps its width."""
    places: int
    """Sandboxes that fit into the allocation."""


# over plain HTTP, so that heartbeats never queue behind them


class NewEndpoint(WireMessage):
    """Body of POST /v1/node/endpoint after a failure or a `RechooseEndpoint`. The answer is an `Endpoint`."""

    lease: LeaseRef
    role: str
    failed: str
    """Id of the failed endpoint. Empty if none failed; then the answer may be the endpoint in use."""
    why: str = ""
    again: bool = False
    """True: the request is repeated after the same failure, and counts as no new complaint."""


class ResultHeader(WireMessage):
    """First line of an uploaded result. The compressed body follows: columns, or from an older node agent JSON."""

    lease: LeaseRef
    status: str
    reward: float | None = None
    error: RolloutError | None = None
    metrics: dict[str, float] = {}
    endpoint: str | None = None
    turns: int = 0
    tokens: int = 0
    """Sampled tokens of all turns."""
    sampled: int | None = None
    """Sampled tokens in its segments; null from a node agent that does not send it."""
    tool_calls: int = 0
    timings: dict[str, float] = {}
    weights_versions: list[str] = []
    """Versions of the weights that sampled its tokens; empty from a node agent that does not send them."""


FromNode = Hello | CapacityRequest | Heartbeat | HandBack
ToNode = Welcome | Grant | Renewed | Cancel | RechooseEndpoint | Drain | Resize
_FROM_NODE: dict[str, type[WireMessage]] = {
    "hello": Hello,
    "capacity_request": CapacityRequest,
    "heartbeat": Heartbeat,
    "hand_back": HandBack,
}
_TO_NODE: dict[str, type[WireMessage]] = {
    "welcome": Welcome,
    "grant": Grant,
    "renewed": Renewed,
    "cancel": Cancel,
    "rechoose_endpoint": RechooseEndpoint,
    "drain": Drain,
    "resize": Resize,
}


def _decode(text: str, known: dict[str, type[WireMessage]]) -> Any:
    data = from_json(text, allow_inf_nan=False)
    model = known.get(str(data.get("type"))) if isinstance(data, dict) else None
    return model.from_wire(data) if model else None


def _ref(lease: Any) -> LeaseRef | None:
    try:
        return LeaseRef.model_validate(lease)
    except ValidationError:
        return None


def from_node(text: str) -> FromNode | None:
    """Return a node agent's message, or None for an unknown type. Raises ValueError on malformed data."""
    message: FromNode | None = _decode(text, _FROM_NODE)
    return message


def to_node(text: str) -> ToNode | None:
    """Return a message of the server, or None for an unknown type. Raises ValueError on malformed data."""
    message: ToNode | None = _decode(text, _TO_NODE)
    return message
