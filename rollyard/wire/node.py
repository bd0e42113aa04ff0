"""Messages between the server and node agents. Short messages go over one WebSocket; results and requests for an
endpoint go over HTTP.

One file shows all that the two processes tell each other.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_serializer, field_validator
from pydantic_core import from_json

from rollyard.kinds.failure_table import IMAGE_UNAVAILABLE, NODE_AGENT_ERROR
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import AgentSpec, Budgets, RolloutError, RolloutKey, Sampling, Stage
from rollyard.kinds.rollout_pool import RoleLimits, Stages
from rollyard.kinds.rollout_profile import RolloutProfile
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.wire.base import Count, Identity, StoredCount, StoredSeconds, WireMessage
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.tool_proof import TemplateProof

RESULT_CONTENT_TYPE = "application/vnd.rollyard.result"
IMAGE_REASON = IMAGE_UNAVAILABLE.reason
"""`HandBack.reason` if the sandbox image cannot be had now. `HandBack.image` says why."""
UNREADABLE_LEASE_REASON = "UnreadableLease"
"""`HandBack.reason` of a lease that the node agent cannot parse, because the node agent is older than the server."""
STOPPED_REASON, WALLTIME_REASON, DRAIN_REASON = "NodeAgentStopped", "WalltimeEnds", "Drained"
CANNOT_MOVE_REASON = "CannotMove"
"""`HandBack.reason` of a rollout that leaves its node agent: at a signal, before the walltime ends, and at the end of a drain's
grace."""
CLOSE_HELLO_EXPECTED = 4408
"""Close code of the WebSocket: the server got no `Hello` in time, or another message first."""
CLOSE_FENCED = 4409
"""Close code of the WebSocket: the node agent must exit, because its job has ended, its allocation no longer exists, or
another process or job is bound to its allocation."""
CLOSE_INCOMPATIBLE = 4426
"""Close code of the WebSocket: node agent or server is too old. The text of the close frame names the older side."""

MAX_RESULT_BYTES = 256 << 20
MAX_SNAPSHOT_BYTES = 64 << 20
"""Greatest length of one compressed snapshot."""
MAX_RESULTS = 256
"""Greatest number of results in one upload."""


class LeaseKey(NamedTuple):
    """Key of a lease: a `LeaseRef` without the stage, because the stage changes during the lease."""

    namespace: str
    id: str
    fence: int


class LeaseRef(WireMessage):
    """Reference to one lease. The lease is void if its rollout has a lease with a higher fence."""

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
    """Lease of a rollout, with everything that a node agent needs to run the rollout."""

    attempt: int
    sample_index: int
    task: Task
    agent: AgentSpec
    sampling: Sampling
    budgets: Budgets
    endpoints: dict[str, Endpoint] = {}
    """Role -> model server for this role. A lease that begins with EVAL has none; the node agent asks for the server of a
    role when a task handler calls it."""
    roles: dict[str, RoleLimits] = {}
    """Role that task handlers may call -> limits of its calls."""
    resume: bool = False
    """Whether the turns of RUN are saved, so that the rollout can go on after them under another lease."""
    saved_turns: int = 0
    """Number of turns that were saved under earlier leases of this attempt."""
    lost: str = ""
    """Why the rollout's lease before this one ended without a result; empty if there was none."""
    lost_node: str = ""
    """Node of that lease."""

    @field_validator("roles", mode="before")
    @classmethod
    def _ignore_unknown_limits(cls, roles: Any) -> Any:
        """Drop unknown fields of `roles`, because a newer server may send them. In a spec an unknown field is an error."""
        if not isinstance(roles, dict):
            return roles
        return {role: RoleLimits.model_validate(limits, extra="ignore") for role, limits in roles.items()}

    @field_serializer("agent", "sampling", "budgets")
    def _dump_without_defaults(self, given: AgentSpec | Sampling | Budgets) -> dict[str, Any]:
        """Leave out fields with default values.

        An older node agent refuses a lease with unknown fields in these parts. Without the defaults it gets a new field
        only if the user has set this field to another value.
        """
        return given.model_dump(mode="json", exclude_defaults=True)


# node agent -> server, over one WebSocket


class ImageFault(WireMessage):
    """Reason why a sandbox image is not on the node."""

    image: str
    """Name in normal form."""
    message: str
    """Sentence that names the image."""
    permanent: bool = False
    """True: somebody must change the image or the pool."""
    pulling: bool = False
    """True: nothing has failed; the node agent pulls the image, or will soon."""
    default: bool = False
    """True: the task names no image, so the pool's default image was meant."""
    evaluator: bool = False
    """True: it is the image of EVAL's sandbox, and RUN's sandbox has another one."""
    registry_down: bool = False
    """True: the image's registry does not answer at all, so the fault is not the image's."""


class Hello(WireMessage):
    type: Literal["hello"] = "hello"
    identity: Identity
    held: list[LeaseRef] = []
    """All leases that the node agent has, including those whose results are not acknowledged. A live lease that is missing
    here has never reached the node agent."""
    widths: dict[str, int] = {}
    """Stage -> number of stage workers; empty in the first hello."""
    places: int = 0
    """`Welcome.places` of the first welcome; 0 in the first hello, or if the number is unknown."""
    kinds: list[str] = []
    """Task kinds for which this node agent has handlers."""
    failed_kinds: dict[str, str] = {}
    """Task kind -> reason why this node agent cannot load the handler of the kind."""
    resumable_kinds: list[str] = []
    """Task kinds whose rollouts may go on elsewhere: their handlers have no agent loop that cannot be repeated. A rollout whose
    environment cannot be saved is handed back if the walltime is too short for it."""
    ready_images: list[str] = []
    """Names, in normal form, of the images of registries that are complete on the node."""


class CapacityRequest(WireMessage):
    """Number of further leases that the node agent can accept now. It replaces the numbers of the previous message."""

    type: Literal["capacity_request"] = "capacity_request"
    init: int = 0
    eval: int = 0
    kinds: list[str] = []
    """Task kinds for which this node agent has handlers."""
    grants: int | None = None
    """Number of Grants that the node agent has received on this connection.

    If the server has sent more Grants, it ignores the message: the numbers `init` and `eval` in it include leases that
    the server has granted in the meantime.
    """


class SandboxCounts(WireMessage):
    """Numbers of sandboxes of a node agent since its start."""

    ready: Count = 0
    """Warm sandboxes that wait for a rollout now."""
    warm: Count = 0
    """Sandboxes that rollouts got and that were warm."""
    cold: Count = 0
    """Sandboxes that were started when a rollout needed them."""
    unused: Count = 0
    """Warm sandboxes that ended without a rollout."""


class ImageStorage(WireMessage):
    """Space of the images in a node's cache. All node agents of a node share its cache; each counts its own evictions."""

    images: Count = 0
    layers: Count = 0
    """Unpacked layers of these images. A layer of several images counts once."""
    bytes: Count = 0
    """Bytes of these layers."""
    unshared_bytes: Count = 0
    """Bytes that the images would take if none shared a layer."""
    evicted_layers: Count = 0
    """Layers that this node agent has deleted since its start, because the cache was full."""
    evicted_bytes: Count = 0


class Heartbeat(WireMessage):
    """Renewal of all leases in `held`.

    A lease that is not in `held` is not ended immediately, because its Grant may not have arrived yet.
    """

    type: Literal["heartbeat"] = "heartbeat"
    held: list[LeaseRef]
    widths: dict[str, int] = {}
    """Stage -> number of stage workers."""
    sandboxes: SandboxCounts = SandboxCounts()
    images: ImageStorage = ImageStorage()
    sent_at: float = 0.0
    """Time by the node agent's monotonic clock. `Renewed` returns this value."""
    memory_shortage: str = ""
    """Sentence that says why the job's memory allows fewer sandboxes than `Welcome.places`; empty if it does not."""
    image_shortage: str = ""
    """Sentence that says what sandboxes of the node cannot do with an image; empty if they can do all."""
    preparing: str = ""
    """Work that the node agent does once on its node, while rollouts in INIT wait for it; empty if there is none."""


class RolloutBroke(NamedTuple):
    """Cause of a hand-back: an error in the node agent's own code. The rollout loses an attempt."""

    message: str
    """Type and text of the error."""


class LeaseUnread(NamedTuple):
    """Cause of a hand-back: the node agent cannot parse the lease. Other node agents of the same release cannot either, so
    the lease counts as lost, and the number of losses is limited."""


class HandBack(WireMessage):
    """Return of an unfinished rollout, for example at a preemption, a drain or the end of the walltime.

    `cause` says what follows. Without one the rollout is queued again, and nothing is counted.
    """

    type: Literal["hand_back"] = "hand_back"
    lease: LeaseRef
    reason: str
    message: str = ""
    """Type and text of the error, if the reason is that of NODE_AGENT_ERROR."""
    image: ImageFault | None = None
    """Set if the reason is IMAGE_REASON. The rollout then waits until the image can be had."""

    @property
    def cause(self) -> RolloutBroke | ImageFault | LeaseUnread | None:
        if self.reason == NODE_AGENT_ERROR.reason:
            return RolloutBroke(self.message)
        return self.image or (LeaseUnread() if self.reason == UNREADABLE_LEASE_REASON else None)


class ImageChanges(WireMessage):
    """Changes of the node's images since `Hello` and the earlier messages of this type."""

    type: Literal["image_changes"] = "image_changes"
    ready: list[str] = []
    """Images that are complete now."""
    gone: list[str] = []
    """Images that were deleted."""
    failed: list[ImageFault] = []
    """Images whose pull failed."""


class KeptSandbox(WireMessage):
    """Sandbox that stays after a failed attempt."""

    lease: LeaseRef
    """Lease of the attempt, with the stage in which it failed."""
    until: float
    """Unix seconds."""


class KeptSandboxList(WireMessage):
    """All sandboxes that the node agent keeps now. Sent after each welcome, and when they change."""

    type: Literal["kept_sandboxes"] = "kept_sandboxes"
    kept: list[KeptSandbox]


class ToolProofs(WireMessage):
    """Proofs of all chat templates that the node agent has loaded. Sent after each welcome, and when there are more."""

    type: Literal["tool_proofs"] = "tool_proofs"
    proofs: list[TemplateProof]


# server -> node agent


class Welcome(WireMessage):
    type: Literal["welcome"] = "welcome"
    lease_seconds: float
    """Seconds from a lease's last renewal to its end. At the end the node agent stops the work of the lease."""
    sandbox: SandboxTemplate
    stages: Stages
    places: int = 0
    """Number of sandboxes of the template `sandbox` that fit into the allocation.

    A node agent takes `sandbox`, `stages` and `places` from its first welcome, and ignores them in later ones.
    """
    lost: list[LeaseRef] = []
    """Leases in `Hello.held` that are void. The node agent must stop the work of these leases."""


class UnreadableLease(WireMessage):
    """Lease that arrived in a Grant and cannot be parsed."""

    lease: LeaseRef | None
    """Reference to the lease; None if the reference cannot be parsed either."""
    why: str


class Grant(WireMessage):
    type: Literal["grant"] = "grant"
    leases: list[Lease]
    unread: list[UnreadableLease] = Field(default=[], exclude=True)
    """Leases that the receiver could not parse. This field is never sent."""

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Parse each lease separately, so that a lease with unknown fields does not affect the others."""
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
    """Hint that a better endpoint may exist for a role of a lease. The node agent then asks for an endpoint before
    the next turn.

    The message names no endpoint. The server chooses one when the node agent sends a `NewEndpoint` without `failed`.
    """

    type: Literal["rechoose_endpoint"] = "rechoose_endpoint"
    lease: LeaseRef
    role: str
    now: bool = False
    """True: the endpoint does not answer, so the node agent must ask immediately. Requests that wait for the endpoint
    continue at the new endpoint with the ids sampled so far."""


class Drain(WireMessage):
    type: Literal["drain"] = "drain"


class Deadline(WireMessage):
    """End of the allocation. What can go on elsewhere leaves before. Each message replaces the previous one."""

    type: Literal["deadline"] = "deadline"
    seconds: float
    """Seconds from now to the end."""
    reason: str
    """WALLTIME_REASON or DRAIN_REASON."""


class Resize(WireMessage):
    """Desired number of stage workers in each stage. Heartbeats report the actual numbers."""

    type: Literal["resize"] = "resize"
    widths: dict[str, int]
    """Stage -> number of stage workers. A stage that is missing keeps its number."""
    places: int
    """Number of sandboxes that fit into the allocation."""


class Attach(WireMessage):
    """Request to open a WebSocket to `/v1/node/attach?id=ID`, for a person who looks into a rollout."""

    type: Literal["attach"] = "attach"
    id: str
    """Random id of the attachment."""
    lease: LeaseRef
    kind: str
    """Kind of the attachment (`wire/attach.py`)."""


class PrefetchImages(WireMessage):
    """Images of rollouts that wait in the queue, those that are needed first at the front. The node agent pulls them before
    their rollouts come. The message replaces the previous one."""

    type: Literal["prefetch_images"] = "prefetch_images"
    images: list[str]
    """Names in normal form."""


# node agent -> server, over HTTP: on the WebSocket a heartbeat would have to wait behind a large message


class NewEndpoint(WireMessage):
    """Body of POST /v1/node/endpoint, after a failure or a `RechooseEndpoint`. Answer: `Endpoint`."""

    lease: LeaseRef
    role: str
    failed: str
    """Id of the endpoint that failed. Empty if none failed; in this case the answer may be the endpoint in use, or the first
    one of the role."""
    why: str = ""
    again: bool = False
    """True: this request repeats an earlier one about the same failure. The failure is not counted a second time."""


class ResultHeader(WireMessage):
    """First line of an uploaded result: how the rollout ended, or how RUN did.

    Frames may follow (`trajectory/frames.py`), each compressed: the tokens as columns (`trajectory/columns.py`), and with the
    result of RUN the artifact. The result of EVAL has no frame, unless a task handler has called models by role in EVAL: then
    it has the tokens once more, with these calls.
    """

    lease: LeaseRef
    status: str
    reward: float | None = None
    error: RolloutError | None = None
    parts: dict[str, float] = {}
    metrics: dict[str, float] = {}
    notes: list[str] = []
    endpoint: str | None = None
    turns: StoredCount = 0
    tokens: StoredCount = 0
    """Number of sampled tokens in all turns."""
    prompt_tokens: StoredCount = 0
    """Number of tokens in the prompts of all turns. The prompt of a turn has the tokens of the earlier turns again."""
    sampled: StoredCount = 0
    """Number of the result's tokens on which a trainer can train: those with a loss mask of 1."""
    tool_calls: StoredCount = 0
    timings: dict[str, StoredSeconds] = {}
    profile: RolloutProfile | None = None
    weights_versions: list[str] = []
    """Weights versions that sampled the result's tokens."""


class SnapshotHeader(WireMessage):
    """First line of an uploaded snapshot, sealed (`trajectory/frames.py`). The compressed archive follows, or nothing if there
    is an `error`."""

    lease: LeaseRef
    sha256: str = ""
    """Digest of the archive. Empty: it is not checked."""
    turn: int = Field(ge=0, le=1 << 31)
    archive_bytes: StoredCount = 0
    files: StoredCount = 0
    left_out: list[str] = []
    left_out_count: StoredCount = 0
    image: str = ""
    error: str | None = None
    seconds: StoredSeconds = 0.0
    """Time that it took."""
    resume: bool = False
    """True: the snapshot is kept only until RUN's result is stored, for a node agent that goes on with the rollout."""


class TurnsHeader(WireMessage):
    """First line of an upload of saved turns (`trajectory/saved_turn.py`). A frame for each new turn follows, compressed. The
    upload is sealed (`trajectory/frames.py`).

    The first `kept` stored turns stay, and the new ones follow them. So an upload may be repeated.
    """

    lease: LeaseRef
    kept: int = Field(ge=0, le=1 << 31)
    resumed: Resumption | None = None
    """Set in the first upload of a lease that followed a lost one."""
    weights_version: str | None = None
    """Version of the endpoint with which the lease began."""
    stopped: str = ""
    """Sentence that says what is not saved any more under this lease, and why."""


class StoredTurns(WireMessage):
    """First frame of the server's answer about a rollout in RUN. The saved turns follow, compressed."""

    snapshot: RolloutSnapshot | None = None
    """Newest snapshot for a node agent that goes on with the rollout."""
    resumptions: list[Resumption] = []


FromNode = Hello | CapacityRequest | Heartbeat | HandBack | ImageChanges | KeptSandboxList | ToolProofs
ToNode = Welcome | Grant | Renewed | Cancel | RechooseEndpoint | Drain | Deadline | Resize | Attach | PrefetchImages
_FROM_NODE: dict[str, type[WireMessage]] = {
    "hello": Hello,
    "capacity_request": CapacityRequest,
    "heartbeat": Heartbeat,
    "hand_back": HandBack,
    "kept_sandboxes": KeptSandboxList,
    "tool_proofs": ToolProofs,
    "image_changes": ImageChanges,
}
_TO_NODE: dict[str, type[WireMessage]] = {
    "welcome": Welcome,
    "grant": Grant,
    "renewed": Renewed,
    "cancel": Cancel,
    "rechoose_endpoint": RechooseEndpoint,
    "drain": Drain,
    "deadline": Deadline,
    "resize": Resize,
    "attach": Attach,
    "prefetch_images": PrefetchImages,
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
    """Parse a message of a node agent. Return None for an unknown type. Raises ValueError for malformed data."""
    message: FromNode | None = _decode(text, _FROM_NODE)
    return message


def to_node(text: str) -> ToNode | None:
    """Parse a message of the server. Return None for an unknown type. Raises ValueError for malformed data."""
    message: ToNode | None = _decode(text, _TO_NODE)
    return message
