"""Messages between the server and the process that supervises an engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from rollyard.kinds.base import Reason
from rollyard.wire.base import Identity, WireMessage


class EngineHello(WireMessage):
    """Body of POST /v1/engine/register, also after each reconnect. The answer is `EngineWelcome`."""

    identity: Identity
    url: str
    csr: str | None = None
    """Certificate request in PEM; null while the present certificate is valid."""


class WeightsTarget(WireMessage):
    """Weights that an engine should serve until it gets another target."""

    version: str
    """Version name that the trainer chose."""
    mode: Literal["Drain", "Pause", "Abort"] = "Drain"
    """Treatment of running requests. Drain: they end first. Pause: they continue with the new weights. Abort: they end with
    the tokens that they have."""
    path: str | None = None
    """Folder of the weights; a path on the engine's node. Null if `adapter` is set."""
    adapter: str | None = None
    """Folder of a LoRA adapter for the pool's own weights."""
    checksum: str | None = None
    """Expected checksum of the folder; the engine refuses other content. Null: any content."""
    attempt: int = 1
    """Number of the attempt. After a failure a higher number means another try."""
    transfer: bool = False
    """True: a trainer moves the weights into the running engine. Engines that cannot receive a transfer load `path`."""


class EngineWelcome(WireMessage):
    certificate: str | None = None
    """Certificate of the engine's reverse proxy with its chain, in PEM."""
    heartbeat_seconds: float
    token: str
    """Token that node agents send to the engine's reverse proxy."""
    weights: WeightsTarget | None = None
    """Weights to serve from the start; null for the model of the pool's spec."""


class EngineLoad(WireMessage):
    """Totals since the engine's start; null if unknown. `server/routing/endpoint_rates.py` makes rates from them."""

    life: int = 0
    """Number of the engine's start within its allocation. The totals begin at zero with each start."""
    at: float
    """Time at which the totals were read, in seconds of the sender's monotonic clock."""
    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    """Prompt tokens, including those found in the prefix cache."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    """Prompt tokens found in the prefix cache."""
    preemptions: int | None = None
    """Requests interrupted because the key-value cache was full."""
    first_tokens: int | None = None
    """Requests that have received their first token."""
    first_token_seconds: float | None = None
    """Sum of the times from arrival to the first token."""


WeightsPhase = Literal["", "Draining", "Transferring", "Loading", "Probing", "Failed"]


class WeightsReport(WireMessage):
    """Weights of one engine, as it reports them. The facts have this form everywhere, from the engine to the pool's status."""

    version: str = ""
    """Verified version that the engine serves; empty until the verification."""
    checksum: str = ""
    """Checksum of the folder from which the weights came."""
    phase: WeightsPhase = ""
    """Progress towards the last target; empty when it is reached. Transferring: the engine waits for the trainer."""
    error: str = ""
    """Reason of the failure."""
    attempt: int | None = None
    """`attempt` of the failed target; null from an engine that does not send it."""
    note: str | None = None
    """Reason why the engine loaded the folder in spite of a transfer, else empty. Null from an engine without transfers."""

    @property
    def settled(self) -> bool:
        """Whether the engine is not on its way to another version. After a failure it still has the version before."""
        return self.phase in ("", "Failed")


UNHEALTHY = "Unhealthy"
"""Reason of an engine that was ready and no longer answers its supervisor."""


class EngineHeartbeat(WireMessage):
    """Body of POST /v1/engine/heartbeat. The answer is `EngineOrders`."""

    identity: Identity
    url: str
    ready: bool
    reason: str = ""
    """Reason why the engine is not ready, as `Word` or `Word: message`."""
    weights: WeightsReport = WeightsReport()
    """Weights of the engine. On the wire these fields are beside the others, as `weights_version` and so on."""
    running: int = 0
    waiting: int | None = None
    """Requests that wait in the engine; null if unknown."""
    kv_usage: float | None = None
    """Filled share of the engine's key-value cache, 0 to 1; null if unknown."""
    load: EngineLoad | None = None
    """Totals of the engine's work; null if unknown."""

    @property
    def why_not_ready(self) -> Reason | None:
        return Reason.parse(self.reason) if self.reason else None

    @model_validator(mode="before")
    @classmethod
    def _nest_weights(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        weights = {
            name: message[f"weights_{name}"] for name in WeightsReport.model_fields if f"weights_{name}" in message
        }
        return {"weights": weights, **message}

    @model_serializer(mode="wrap")
    def _flatten_weights(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        message: dict[str, Any] = dump(self)
        weights = message.pop("weights")
        return message | {f"weights_{name}": value for name, value in weights.items()}


class EngineOrders(WireMessage):
    known: bool = True
    """False: the server does not know the engine, which must register again."""
    drain: bool = False
    weights: WeightsTarget | None = None
