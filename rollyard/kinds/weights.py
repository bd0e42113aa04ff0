"""Weights of an InferencePool: the request for an update, and the durable state of the weights in the pool's status."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollyard.kinds.base import KindModel, StatusModel
from rollyard.kinds.values.paths import AbsolutePath

VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:+-]*$"
KEPT_VERSIONS = 100
"""Greatest number of versions in a pool's history."""

Mode = Literal["Drain", "Pause", "Abort"]
Version = Annotated[str, Field(pattern=VERSION_PATTERN, max_length=64)]


class WeightsUpdate(KindModel):
    """Body of `POST …/inferencepools/NAME/weights`: exactly one of `path`, `adapter`."""

    version: Version
    """Version name that the trainer chose. A version name always means the same weights."""
    path: AbsolutePath | None = None
    """Folder of the weights in Hugging Face layout; a path on the engines' nodes."""
    adapter: AbsolutePath | None = None
    """Folder of a LoRA adapter for the pool's own model; a path on the engines' nodes."""
    mode: Mode = "Drain"
    """Treatment of running requests. Drain: requests end before the update. Pause: requests continue with the new weights.
    Abort: requests end with the tokens sampled so far."""
    checksum: str | None = Field(default=None, pattern=r"^[0-9a-f]{12}$")
    """Expected checksum of the folder; engines refuse other content. Default: the checksum that the first engine computes."""
    timeout_seconds: int = Field(default=900, ge=1, le=86400)
    """Longest time of the update on one endpoint, in seconds. After this time the endpoint counts as failed."""
    transfer: bool = False
    """True: the trainer itself moves the weights into the running engines. Engines that get no transfer load `path`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.adapter is None):
            raise ValueError(
                "set exactly one of `path` (a folder of weights) and `adapter` (a folder of a LoRA adapter)"
            )
        if self.transfer and self.path is None:
            raise ValueError(
                "`transfer` needs `path`, a folder of the same weights; adapters are always read from their folder"
            )
        return self


class WeightsRecord(StatusModel):
    """One weights version and its source."""

    version: str
    path: str | None = None
    adapter: str | None = None
    checksum: str | None = None
    """Checksum that the update requested."""
    proven: str | None = None
    """Checksum of the version: the checksum that the update requested, or else the first checksum that an engine
    reported. Engines refuse to load other content as this version."""
    mode: Mode = "Drain"
    origin: Literal["Spec", "Update"] = "Update"
    """Origin of the version. Spec: the model in the pool's spec; the version is the model's checksum."""
    number: int = 0
    """Position in the order in which versions were served. A version that is served again gets a new position, unless
    it is still the newest."""
    attempt: int = 1
    """Sequence number of the update among the pool's updates; 0 for the spec's model. When an engine that failed
    gets a target with a new number, it tries again at once."""
    transfer: bool = False
    """True: a trainer moves the weights into the running engines."""
    since: datetime

    @property
    def source(self) -> str:
        return f"path {self.path}" if self.path is not None else f"adapter {self.adapter}"


class EndpointProgress(StatusModel):
    """Progress of one endpoint in the weights update."""

    phase: Literal["Waiting", "Ordered", "Done", "Failed"] = "Waiting"
    since: datetime
    """Start of the phase."""
    reason: str = ""
    """Reason of a failure, or reason why a requested transfer was not used."""
    transferring: bool = False
    """True: the endpoint waits for the trainer's transfer, or receives it."""
    attempt: int | None = None
    """Number of the last retry at this endpoint in this update; null without a retry. Updates and retries of a pool are
    numbered in one sequence."""


class WeightsOperation(StatusModel):
    """Accepted weights update. The last update stays visible after its end."""

    target: WeightsRecord
    timeout_seconds: int = 900
    phase: Literal["Pending", "Updating", "Complete", "Failed", "Superseded"] = "Pending"
    started_at: datetime
    finished_at: datetime | None = None
    message: str = ""
    supersedes: str | None = None
    """Version of the unfinished update that this update replaced."""
    total: int = 0
    """Number of endpoints in this update; 0 until the pool has an endpoint."""
    done: int = 0
    endpoints: dict[str, EndpointProgress] = {}
    """Endpoint id -> progress. After the phase Complete, only endpoints that failed or that have an `attempt` are kept.
    After any other end the mapping is empty."""

    @property
    def is_running(self) -> bool:
        return self.phase in ("Pending", "Updating")

    @property
    def receivers(self) -> list[str]:
        """Ids of the endpoints that receive the trainer's transfer together; empty until all of them wait for it."""
        at_it = {id: p for id, p in self.endpoints.items() if p.phase == "Ordered" and not p.reason}
        return sorted(at_it) if all(p.transferring for p in at_it.values()) else []


class WeightsStatus(StatusModel):
    """Weights that a pool serves and has served. This state survives restarts."""

    model: str = ""
    """Folder of the spec's model to which this state belongs. A change of the folder in the spec resets the state."""
    current: WeightsRecord | None = None
    """Version that every endpoint must serve while no update is running. Null until an endpoint serves a version."""
    operation: WeightsOperation | None = None
    orders: int = 0
    """Number of updates and retries so far."""
    history: list[WeightsRecord] = []
    """Served versions, oldest first."""

    @property
    def next_number(self) -> int:
        return max((r.number for r in self.history), default=0) + 1

    def record(self, version: str) -> WeightsRecord | None:
        return next((r for r in self.history if r.version == version), None)

    def at_least(self, version: str, minimum: str) -> bool:
        """Whether `version` is as new as `minimum`, or newer. False if either version is not in the history."""
        found, least = self.record(version), self.record(minimum)
        return found is not None and least is not None and found.number >= least.number

    def behind(self, version: str) -> int:
        """Number of versions by which `version` is older than the current version; 0 if `version` is unknown or
        newer."""
        found = self.record(version)
        if self.current is None or found is None:
            return 0
        return sum(found.number < r.number <= self.current.number for r in self.history)
