"""Messages between the server and an engine's supervisor, which is the process that starts and watches the engine."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import field_serializer, field_validator

from rollyard.kinds.base import Reason, ReasonText
from rollyard.wire.base import Count, Identity, WireMessage
from rollyard.wire.tool_proof import ToolProof


def token_digest(token: str) -> str:
    """Return the text by which an engine names a token of its reverse proxy."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


class EngineHello(WireMessage):
    """Body of POST /v1/engine/register. It is sent at the start, and after each `EngineOrders` with `known` false.

    Answer: `EngineWelcome`.
    """

    identity: Identity
    url: str
    csr: str | None = None
    """Certificate signing request in PEM; null if the engine has a valid certificate."""


class WeightsTarget(WireMessage):
    """Weights that an engine must serve. A newer target replaces an older one."""

    version: str
    """Name of the version, chosen by the trainer."""
    mode: Literal["Drain", "Pause", "Abort"] = "Drain"
    """Treatment of running requests. Drain: the engine waits until they have ended. Pause: they continue with the new
    weights. Abort: they end with the tokens sampled so far."""
    path: str | None = None
    """Folder of the weights, as a path on the engine's node. Null if `adapter` is set."""
    adapter: str | None = None
    """Folder of a LoRA adapter for the weights of the pool's spec; null for whole weights."""
    checksum: str | None = None
    """Expected checksum of the folder. The engine refuses a folder with another checksum. Null: any content is accepted."""
    attempt: int = 1
    """Sequence number of the attempt. With a higher number the engine tries a failed target again."""
    transfer: bool = False
    """True: the trainer sends the weights into the running engine. An engine that cannot receive them loads `path`."""


class EngineWelcome(WireMessage):
    certificate: str | None = None
    """Certificate for the engine's reverse proxy and the CA's certificate, in PEM. Null if no `csr` was sent."""
    heartbeat_seconds: float
    token: str
    """Token that callers must send to the engine's reverse proxy."""
    weights: WeightsTarget | None = None
    """Weights to serve from the start. Null: the weights of the pool's spec."""


class EngineLoad(WireMessage):
    """Totals since the engine's start; null if unknown. `server/routing/endpoint_rates.py` computes rates from two reports."""

    life: int = 0
    """Sequence number of the engine's start within its allocation. After each start the totals begin at zero again."""
    at: float
    """Time at which the totals were read, in seconds of the sender's monotonic clock."""
    generated_tokens: Count | None = None
    prompt_tokens: Count | None = None
    """Prompt tokens, including those found in the prefix cache."""
    prefix_queries: Count | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: Count | None = None
    """Prompt tokens found in the prefix cache."""
    preemptions: Count | None = None
    """Number of times that a request was interrupted because the key-value cache was full."""
    first_tokens: Count | None = None
    """Number of requests that have received their first token."""
    first_token_seconds: float | None = None
    """Sum of the seconds from arrival to the first token, over the requests that `first_tokens` counts."""


WeightsPhase = Literal["", "Draining", "Transferring", "Loading", "Probing", "Failed"]


class WeightsReport(WireMessage):
    """State of one engine's weights, as the engine reports it. The server uses it to compute the pool's status."""

    version: str = ""
    """Version that the engine serves; empty until a probe has verified it."""
    checksum: str = ""
    """Checksum of the folder of the served weights."""
    phase: WeightsPhase = ""
    """Step of the change of weights under way; Failed if none is under way and the last one failed; else empty.
    Transferring: the engine waits for the trainer."""
    error: str = ""
    """Reason of the failure, if `phase` is Failed."""
    attempt: int | None = None
    """`attempt` of the target that failed; null if no target failed."""
    note: str | None = None
    """If the target was a transfer, but the weights did not come by a transfer: the reason. Else empty."""

    @property
    def settled(self) -> bool:
        """Whether no change of weights is in progress. After a failed change the engine keeps its previous version."""
        return self.phase in ("", "Failed")


UNHEALTHY = "Unhealthy"
"""Word of `reason` if the engine was ready before, and its latest health probe has failed."""


class EngineHeartbeat(WireMessage):
    """Body of POST /v1/engine/heartbeat. Answer: `EngineOrders`."""

    identity: Identity
    url: str
    ready: bool
    reason: ReasonText | None = None
    """Reason why the engine is not ready. None, which is an empty text on the wire, if it is ready, or if the reason is
    that of its weights."""
    weights: WeightsReport = WeightsReport()
    """Weights of the engine."""
    running: Count = 0
    waiting: Count | None = None
    """Number of requests that wait in the engine; null if unknown."""
    kv_usage: float | None = None
    """Used share of the engine's key-value cache, 0 to 1; null if unknown."""
    load: EngineLoad | None = None
    """Totals of the engine's work; null if unknown."""
    tools: ToolProof | None = None
    """Whether the model's tool calls are read; null before the check of the template."""
    context: int | None = None
    """Length of the context in tokens; null if unknown."""
    token: str | None = None
    """`token_digest` of the first token that the reverse proxy accepts; null before there is one."""

    @field_validator("reason", mode="before")
    @classmethod
    def _read_reason(cls, given: Any) -> Any:
        return given or None

    @field_serializer("reason")
    def _write_reason(self, reason: Reason | None) -> str:
        return str(reason or "")


class EngineOrders(WireMessage):
    known: bool = True
    """False: the engine must register again, because the server does not know it."""
    drain: bool = False
    weights: WeightsTarget | None = None
    tokens: list[str] | None = None
    """All tokens that the reverse proxy must accept, the present one first. Null: it keeps those that it accepts."""
