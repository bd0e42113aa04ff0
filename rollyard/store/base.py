"""Records of rollouts and of their images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutKey, Stage, Status, WeightsConstraint
from rollyard.kinds.rollout_snapshot import RolloutSnapshot


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Position of a blob in a pack (a file with many blobs). The blob is fsynced before the row that names it is
    committed."""

    pack: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """Snapshot of a rollout's sandbox. `blob`: the compressed archive; None if there is none."""

    about: RolloutSnapshot
    blob: BlobRef | None


_STAGE_WORDS = tuple(stage.lower() for stage in Stage)
"""Names of the stages in `RolloutRecord.summary`."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A rollout's durable state. After the insert only `server.rollouts.step` changes a record. The store itself sets
    `cursor`, changes `result` and `artifact` when it moves their blobs to another pack, and deletes old artifacts."""

    namespace: str
    id: str
    digest: str
    """sha256 of the canonical request, its `n` and the sample index. It shows whether two request bodies are equal."""
    request: str
    """The accepted `RolloutRequest` as JSON, with n = 1."""
    pool: str
    task_kind: str
    group: str | None
    sample_index: int
    mode: str
    priority: int
    created_at: float
    seq: int = 0
    """Order of arrival; the store sets it at the first put."""
    status: Status = Status.QUEUED
    stage: Stage = Stage.INIT
    """Stage of a leased or ended rollout; the stage with which a queued rollout will begin. When the node agent
    reports that RUN has begun, the store keeps INIT until the rollout's next event."""
    attempt: int = 1
    faults: int = 0
    """Number of infrastructure failures so far. Each uses up one of the pool's `maxAttempts`."""
    losses: int = 0
    """Number of lost leases. The count begins again at 0 when the result of RUN is stored. A lost lease uses up none of
    the pool's `maxAttempts`; the limit for lost leases is `step.MAX_LOSSES`."""
    lost: int = 0
    """Number of losses after which the rollout went on: `LeaseLost` and `Fault` in its history. Unlike `losses`, the count
    never begins again."""
    fence: int = 0
    """Sequence number of the last lease. A message with a lower number is void."""
    holder: str | None = None
    """Node agent that holds the lease, as `<allocation uid>/<instance>`; None if the rollout is not leased."""
    node: str | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Role -> endpoint id. The endpoints are chosen when a lease is granted, and can change during the lease. A rollout
    that is queued again keeps its last endpoints, because their caches have the rollout's prefix. After an
    infrastructure failure it keeps none.
    """
    queued_at: float = 0.0
    not_before: float = 0.0
    """End of the back-off in Unix seconds. The rollout is not leased before this time."""
    queued_seconds: float = 0.0
    """Total time that the rollout has waited in the queue, without the present wait."""
    result: BlobRef | None = None
    """The stored tokens of RUN, as an `Outcome`; None before the end of RUN, or if the rollout ended without any."""
    artifact: BlobRef | None = None
    """Artifact that EVAL scores; None before the end of RUN, and after the pool's `artifactTtlSecondsAfterFinished`."""
    reward: float | None = None
    error: RolloutError | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Words of the holder about the end, beside the reward: turns, tokens, tool_calls, the timings by name, metrics, notes."""
    finished_at: float | None = None
    cursor: int | None = None
    """Position among terminal records; the store sets it when the status becomes terminal."""
    min_weights_version: str | None = None
    """Oldest weights version with which the rollout may run."""
    weights: WeightsConstraint | None = None
    """Constraint on the weights after the rollout has begun, or None. When the pool's weights change, the server checks
    only the records with a constraint (`Transaction.version_bound`)."""
    weights_version: str | None = None
    """Version of the policy when the lease was granted; while there are saved turns, version with which their first lease was
    granted. None after a requeue that repeats the sampling."""
    outdated: int = 0
    """Number of leases taken back because the weights no longer matched the request. Such a lease uses up none of the
    pool's `maxAttempts`; the limit for such leases is `step.MAX_OUTDATED`."""
    queue_rank: float = 0.0
    """Place in the queue among the rollouts of the same priority. Ranks grow within a batch. The ranks of the pool's
    batches are interleaved. All rollouts without a batch count as one more batch."""
    history: str = ""
    """Changes of the rollout so far, as lines of JSON. `server.rollouts.history` reads them."""
    image: str = ""
    """Sandbox image of the task in normal form; empty if the task names none, so that the pool's default image is used."""
    eval_image: str = ""
    """Image of EVAL's sandbox in normal form; empty if it is that of RUN's sandbox."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the task (`kinds/task_metadata.py`)."""
    saved_turns: int = 0
    """Number of turns of RUN in the store, after which another node agent can go on with the attempt."""

    sampled_by: tuple[str, ...] = ()
    """Weights versions that sampled the stored tokens, in order of their first tokens; empty while there are none."""

    def images(self, default: str) -> list[str]:
        """Return the images that the rollout needs from its present stage on. A node has them before INIT begins, so that no
        agent works for an evaluation that has no image. `default`: image of tasks that name none; empty: none is needed."""
        run = self.image or default
        needed = [self.eval_image or run] if self.stage is Stage.EVAL else [run, self.eval_image]
        return [image for image in needed if image]

    task: str = ""
    """Digest of the task (`Task.digest`)."""

    @property
    def key(self) -> RolloutKey:
        return RolloutKey(self.namespace, self.id)

    @property
    def pool_key(self) -> PoolKey:
        return PoolKey(self.namespace, self.pool)

    @property
    def artifact_deleted(self) -> bool:
        """Whether the rollout had an artifact. Each rollout that reaches EVAL has one, and stays at EVAL."""
        return self.artifact is None and self.stage is Stage.EVAL and self.status.terminal

    @property
    def leased(self) -> bool:
        return self.holder is not None

    # Parts of `error` and `summary`, by which rollouts are searched. None: not known.

    @property
    def reason(self) -> str | None:
        return self.error.reason if self.error is not None else None

    @property
    def tokens(self) -> int | None:
        return self.summary.get("tokens")

    @property
    def turns(self) -> int | None:
        return self.summary.get("turns")

    @property
    def failed_calls(self) -> int | None:
        """Number of tool calls that failed."""
        profile = self.summary.get("profile")
        return None if profile is None else sum(use.get("failed", 0) for use in profile.get("by_tool", []))

    @property
    def suspicious(self) -> bool:
        """Whether people should look at a reward above 0."""
        return bool(self.summary.get("metrics", {}).get("suspicious", 0.0) > 0)

    @property
    def seconds(self) -> float | None:
        """Seconds in all stages of the last attempt."""
        if not self.summary:  # as long as it has not ended
            return None
        found = [float(t) for word in _STAGE_WORDS if (t := self.summary.get(word)) is not None]
        return round(sum(found), 3) if found else None


@dataclass(frozen=True, slots=True)
class MissingImage:
    """An image that a pool's node agents do not have now. The pool's queued rollouts of this image wait until `until`.
    Then one of them is granted and tries the image. If the image is there, this row is deleted."""

    pool: PoolKey
    image: str
    message: str = ""
    """Sentence of the last failure; empty if the image has not failed."""
    permanent: bool = False
    """True: somebody must change the image or the pool."""
    registry_down: bool = False
    """True: the image waits for its registry, which does not answer."""
    failures: int = 0
    """Number of failures in a row."""
    since: float = 0.0
    """Time of the first failure in the row (Unix seconds); 0 before it."""
    until: float = 0.0
    """Unix seconds."""
    trying: bool = False
    """True: a node agent pulls the image now, or was asked to."""


def allocation_uid(holder: str | None) -> str:
    """Uid of the allocation in which a holder of a lease runs; empty if there is no holder."""
    return (holder or "").partition("/")[0]


@dataclass(frozen=True, slots=True)
class QueueRanks:
    """Ranks of a pool's queue, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).

    A rollout's rank is the rank of the rollout before it in the batch, plus 1 / weight of the batch. The first rollout
    after a pause has a rank after `served`, so that a batch gains no advantage by a pause.
    """

    served: float = 0.0
    """Greatest rank of the rollouts to which a lease was granted."""
    submitted: float = 0.0
    """Last rank of the rollouts without a batch."""

    def first(self, last: float, step: float = 1.0) -> float:
        """Return the next rank of a batch whose last rank was `last`. `step`: distance between the batch's ranks."""
        return max(self.served, last) + step


@dataclass(frozen=True, slots=True)
class VersionBound:
    """Fields of a record that decide whether the rollout's weights still match its request."""

    id: str
    group: str | None
    stage: Stage
    leased: bool
    endpoints: Mapping[str, str]
    weights: WeightsConstraint
    weights_version: str | None


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """Versions of a group's rollouts. Rollouts that ended `Cancelled` or `InfraFailed` do not count."""

    sampled: frozenset[str] = frozenset()
    """Versions of rollouts that are at EVAL or have ended. All tokens of these rollouts are sampled."""
    begun: frozenset[str] = frozenset()
    """Versions of the other rollouts, which are still being sampled."""

    @property
    def fixed(self) -> str | None:
        """Version to which the group is bound; None before the group's first rollout begins."""
        return min(self.sampled or self.begun, default=None)


class SortField(StrEnum):
    """Value by which found rollouts are sorted."""

    ENDED = "ended"
    REWARD = "reward"
    TOKENS = "tokens"
    TURNS = "turns"
    SECONDS = "seconds"
    FAILED_CALLS = "failed_calls"


@dataclass(frozen=True, slots=True)
class RolloutSearch:
    """Conditions that all must hold. None: no condition."""

    kind: str | None = None
    mode: str | None = None
    reason: str | None = None
    """Reason of the error."""
    task: str | None = None
    """Digest of the task."""
    batch: str | None = None
    """Batch to whose groups the rollouts belong."""
    prefix: str = ""
    """Text with which the ids begin."""
    since: float | None = None
    """Only rollouts that ended at this time or later (Unix seconds), or have not ended."""
    until: float | None = None
    """Only rollouts that ended before this time."""
    min_reward: float | None = None
    max_reward: float | None = None
    failed_calls: bool = False
    """Only rollouts with a tool call that failed."""
    failed_tool: str | None = None
    """Only rollouts with a call of this tool that failed."""
    lost: bool = False
    """Only rollouts that lost an attempt or a lease, and went on."""
    lost_reason: str | None = None
    """Only rollouts that lost one for this reason."""
    sort: SortField | None = None
    """None: order of arrival. Rollouts without the value are left out."""
    descending: bool = False


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    namespace: str | None = None
    pool: str | None = None
    group: str | None = None
    metadata: tuple[str, ...] = ()
    """Only rollouts whose tasks have all of these items of metadata (`kinds/task_metadata.py`). Needs a namespace."""
    suspicious: bool = False
    """Only rollouts whose metric `suspicious` is above 0."""
    status: tuple[Status, ...] = ()
    after_seq: int = 0
    limit: int = 500
    search: RolloutSearch | None = None
    """Further conditions. They need a namespace."""

    @property
    def is_costly(self) -> bool:
        """Whether the time of a list may grow with the number of stored rollouts. An index has the rollouts of a namespace, of
        a pool and of a group, and those that have not ended."""
        ended = self.group is None and any(status.terminal for status in self.status)
        return self.search is not None or bool(self.metadata) or self.suspicious or ended
