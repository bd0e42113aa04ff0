"""Weights of an InferencePool: what one asks for, and the durable state of it in the pool's status."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollyard.kinds.base import Kinded, Observed
from rollyard.kinds.paths import AbsolutePath

VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:+-]*$"
KEPT_VERSIONS = 100
"""In a pool's history."""

Mode = Literal["Drain", "Pause", "Abort"]
Version = Annotated[str, Field(pattern=VERSION_PATTERN, max_length=64)]


class WeightsUpdate(Kinded):
    """Body of `POST …/inferencepools/NAME/weights`: exactly one of `path`, `adapter`."""

    version: Version
    """As the trainer calls it; one version always means the same weights."""
    path: AbsolutePath | None = None
    """Folder of the weights in Hugging Face layout, as the engines' nodes see it."""
    adapter: AbsolutePath | None = None
    """Folder of a LoRA adapter on top of the pool's own model, as the engines' nodes see it."""
    mode: Mode = "Drain"
    """For the requests that run: let them end, keep them and go on with the new weights, or hand back what they have."""
    checksum: str | None = Field(default=None, pattern=r"^[0-9a-f]{12}$")
    """Of the folder, as engines compute it; another content is refused. Left out: the first engine's holds for all."""
    timeout_seconds: int = Field(default=900, ge=1, le=86400)
    """An endpoint that has not done it so long after it was told counts as failed."""
    transfer: bool = False
    """The trainer moves the weights into the running engines itself; others, and those started later, read `path`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.adapter is None):
            raise ValueError(
                "give exactly one of `path` (a folder of weights) and `adapter` (a folder of a LoRA adapter)"
            )
        if self.transfer and self.path is None:
            raise ValueError(
                "`transfer` needs `path`, a folder of the same weights; adapters are read from their folder"
            )
        return self


class WeightsRecord(Observed):
    """One version and where it comes from."""

    version: str
    path: str | None = None
    adapter: str | None = None
    checksum: str | None = None
    """As it was asked for."""
    proven: str | None = None
    """Checksum that the first engine found; another content under this version is refused."""
    mode: Mode = "Drain"
    origin: Literal["Spec", "Update"] = "Update"
    """Spec: the model that the pool declares, called by its checksum."""
    number: int = 0
    """Place in the order in which the versions came; a version that comes again gets a new one."""
    attempt: int = 1
    """Serial number of the order for it: an engine tries anew what failed before under a lower one."""
    transfer: bool = False
    """While it is being loaded, a trainer is there to move it into running engines."""
    since: datetime

    @property
    def source(self) -> str:
        return f"path {self.path}" if self.path is not None else f"adapter {self.adapter}"


class EndpointProgress(Observed):
    """How far one endpoint is with the operation."""

    phase: Literal["Waiting", "Ordered", "Done", "Failed"] = "Waiting"
    since: datetime
    """Of the phase."""
    reason: str = ""
    """Why it failed; or why it read the folder, though the weights were to be transferred."""
    transferring: bool = False
    """It waits for the trainer to move the weights into it, or is getting them."""
    attempt: int | None = None
    """Serial number of its order, where that is not the target's: it is tried once more."""


class WeightsOperation(Observed):
    """An update from the moment it was accepted; the last one stays to be looked at."""

    target: WeightsRecord
    timeout_seconds: int = 900
    phase: Literal["Pending", "Updating", "Complete", "Failed", "Superseded"] = "Pending"
    started_at: datetime
    finished_at: datetime | None = None
    message: str = ""
    supersedes: str | None = None
    """Version of the operation that was under way when this one came."""
    total: int = 0
    """Endpoints that take part, or took part."""
    done: int = 0
    endpoints: dict[str, EndpointProgress] = {}
    """By id; of an operation that has ended, those that need to be remembered."""

    @property
    def under_way(self) -> bool:
        return self.phase in ("Pending", "Updating")

    @property
    def receivers(self) -> list[str]:
        """Ids of the endpoints that wait for their trainer; empty as long as one whose turn it is may join them."""
        at_it = {id: p for id, p in self.endpoints.items() if p.phase == "Ordered" and not p.reason}
        return sorted(at_it) if all(p.transferring for p in at_it.values()) else []


class WeightsStatus(Observed):
    """Durable: which weights a pool serves, and what it has served."""

    model: str = ""
    """Folder of the spec's model that all this is about; another one in the spec begins anew."""
    current: WeightsRecord | None = None
    """What every endpoint has to prove; null until the first has said what the spec's model is."""
    operation: WeightsOperation | None = None
    orders: int = 0
    """So many updates were begun, or begun anew."""
    history: list[WeightsRecord] = []
    """Versions that were served, oldest first."""

    @property
    def next_number(self) -> int:
        return max((r.number for r in self.history), default=0) + 1

    def record(self, version: str) -> WeightsRecord | None:
        return next((r for r in self.history if r.version == version), None)

    def at_least(self, version: str, minimum: str) -> bool:
        """Whether a version came no earlier than another. One that is not in the history is neither early nor late."""
        found, least = self.record(version), self.record(minimum)
        return found is not None and least is not None and found.number >= least.number

    def behind(self, version: str) -> int:
        """By how many versions it is older than the current one; 0 for one that is not known, or newer."""
        found = self.record(version)
        if self.current is None or found is None:
            return 0
        return sum(found.number < r.number <= self.current.number for r in self.history)
