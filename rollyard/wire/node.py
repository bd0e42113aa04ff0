"""Messages between the server and node agents: over one WebSocket, and over plain HTTP for what is large."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_serializer
from pydantic_core import from_json

from rollyard.kinds.rollout import AgentSpec, Budgets, RolloutError, Sampling, Stage, Task
from rollyard.kinds.rollout_pool import SandboxTemplate, Stages
from rollyard.wire.base import PROTOCOL, Identity, WireMessage
from rollyard.wire.endpoint import Endpoint

RESULT_CONTENT_TYPE = "application/vnd.rollyard.result"
NODE_AGENT_ERROR = "NodeAgentError"
"""Reason of a hand-back that may be the rollout's own doing: it broke the node agent's code."""
UNREADABLE_LEASE_REASON = "UnreadableLease"
"""Reason of a hand-back of what asks for something that the node agent is too old to know."""
MAX_ARTIFACT_BYTES = 4 << 20
MAX_RESULT_BYTES = 256 << 20


class LeaseRef(WireMessage):
    """Names one lease; a higher fence of the same rollout makes it void."""

    namespace: str
    id: str
    fence: int
    stage: Stage = Stage.INIT


class Lease(LeaseRef):
    """A rollout handed to a node agent, with all that is needed to run it."""

    attempt: int
    sample_index: int
    task: Task
    agent: AgentSpec
    sampling: Sampling
    budgets: Budgets
    endpoints: dict[str, Endpoint] = {}
    """Role -> model server."""

    @field_serializer("agent", "sampling", "budgets")
    def _dump_without_defaults(self, asked: AgentSpec | Sampling | Budgets) -> dict[str, Any]:
        """What a user may ask is read strictly: a node agent that is older than a field gets it only if it was set."""
        return asked.model_dump(mode="json", exclude_defaults=True)


# node agent -> server, over one WebSocket


class Hello(WireMessage):
    type: Literal["hello"] = "hello"
    identity: Identity
    held: list[LeaseRef] = []
    """Everything in hand, unacknowledged results included; a lease that the server thinks is here was never received."""
    widths: dict[str, int] = {}
    """Stage -> stage workers; empty at the first hello."""
    places: int = 0
    """Sandboxes that fit into the allocation, by its first `Welcome`; 0 before that, and where it does not say so."""
    kinds: list[str] = []
    """Task kinds this node agent has handlers for; empty from one that says it in `CapacityRequest` alone."""
    failed_kinds: dict[str, str] = {}
    """Task kind -> why its handler cannot be loaded here."""


class CapacityRequest(WireMessage):
    """How many more leases there is room for right now; replaces what was said before."""

    type: Literal["want"] = "want"
    init: int = 0
    eval: int = 0
    kinds: list[str] = []
    """Task kinds this node agent has handlers for."""
    grants: int | None = None
    """How many Grants have arrived on this connection; one that is still on its way makes this word void."""


class Heartbeat(WireMessage):
    """Renews every lease named; one that is not named may still be on its way in a Grant, and only runs out."""

    type: Literal["heartbeat"] = "heartbeat"
    held: list[LeaseRef]
    widths: dict[str, int] = {}
    """Stage -> stage workers."""
    sent_at: float = 0.0
    """The sender's monotonic clock, echoed in `Renewed`."""


class HandBack(WireMessage):
    """Not done and not at fault: preempted, drained, or out of time. Costs no attempt."""

    type: Literal["hand_back"] = "hand_back"
    lease: LeaseRef
    reason: str
    message: str = ""
    """Type and text of the error, where `reason` is NODE_AGENT_ERROR."""


# server -> node agent


class Welcome(WireMessage):
    type: Literal["welcome"] = "welcome"
    protocol: int = PROTOCOL
    epoch: int
    lease_seconds: float
    """A holder that has not been renewed for so long stops by itself."""
    sandbox: SandboxTemplate
    stages: Stages
    places: int = 0
    """Such sandboxes that fit into the allocation. Like `sandbox` and `stages` it holds from the first welcome on."""
    lost: list[LeaseRef] = []
    """Of what `hello` named: no longer the caller's; stop."""


class UnreadableLease(WireMessage):
    """A lease that has arrived and cannot be read."""

    lease: LeaseRef | None
    """None where not even that can be read."""
    why: str


class Grant(WireMessage):
    type: Literal["grant"] = "grant"
    leases: list[Lease]
    unread: list[UnreadableLease] = Field(default=[], exclude=True)
    """Never sent: found on arrival."""

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Lease by lease: what users ask is read strictly, and one that asks for something newer hides no other."""
        found = data.get("leases")
        if not isinstance(found, list):
            return cls.model_validate(data)
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
    """Ask for the endpoint of this role again before the next turn: there may be a better one by now.

    A hint: the choice is made, and written down, when it is asked for (`NewEndpoint` without `failed`).
    """

    type: Literal["repin"] = "repin"
    lease: LeaseRef
    role: str
    now: bool = False
    """The endpoint does not answer: ask at once. A request that waits there goes on at the other with the ids it has."""


class Drain(WireMessage):
    type: Literal["drain"] = "drain"


class Resize(WireMessage):
    """How wide the stages should be from now on; heartbeats tell how wide they are."""

    type: Literal["resize"] = "resize"
    widths: dict[str, int]
    """Stage -> stage workers; a stage that is not named stays."""
    places: int
    """Sandboxes that fit into the allocation."""


# over plain HTTP, so that heartbeats never queue behind them


class NewEndpoint(WireMessage):
    """POST /v1/node/endpoint: the one in use failed, or a `RechooseEndpoint` came; answers an `Endpoint`."""

    lease: LeaseRef
    role: str
    failed: str
    """Id of the endpoint; empty where none failed, and then the answer may be the one in use."""
    why: str = ""
    again: bool = False
    """Asked for the same failure before, and there was none: no further complaint of it."""


class ResultHeader(WireMessage):
    """First line of an uploaded result; the compressed JSON body follows."""

    lease: LeaseRef
    status: str
    reward: float | None = None
    error: RolloutError | None = None
    metrics: dict[str, float] = {}
    endpoint: str | None = None
    turns: int = 0
    tokens: int = 0
    """Sampled tokens, of all turns."""
    sampled: int | None = None
    """Sampled tokens in its segments; null from a node agent that does not say it."""
    tool_calls: int = 0
    timings: dict[str, float] = {}
    weights_versions: list[str] = []
    """All that sampled tokens have; empty from a node agent that does not say it."""


FromNode = Hello | CapacityRequest | Heartbeat | HandBack
ToNode = Welcome | Grant | Renewed | Cancel | RechooseEndpoint | Drain | Resize
_FROM_NODE: dict[str, type[WireMessage]] = {
    "hello": Hello,
    "want": CapacityRequest,
    "heartbeat": Heartbeat,
    "hand_back": HandBack,
}
_TO_NODE: dict[str, type[WireMessage]] = {
    "welcome": Welcome,
    "grant": Grant,
    "renewed": Renewed,
    "cancel": Cancel,
    "repin": RechooseEndpoint,
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
    """A node agent's message; None for a type that this version does not know. Raises ValueError on nonsense."""
    message: FromNode | None = _decode(text, _FROM_NODE)
    return message


def to_node(text: str) -> ToNode | None:
    """A server's message; None for a type that this version does not know. Raises ValueError on nonsense."""
    message: ToNode | None = _decode(text, _TO_NODE)
    return message
