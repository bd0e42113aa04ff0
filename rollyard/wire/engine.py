"""Messages between the server and the process that supervises an engine."""

from __future__ import annotations

from typing import Literal

from rollyard.wire.base import Identity, WireMessage


class EngineHello(WireMessage):
    """POST /v1/engine/register, answered by `EngineWelcome`; again after each reconnect."""

    identity: Identity
    url: str
    csr: str | None = None
    """PEM; null when the certificate at hand is still good."""


class WeightsTarget(WireMessage):
    """What an engine should serve; it holds until another one comes."""

    version: str
    """As the trainer calls it."""
    mode: Literal["Drain", "Pause", "Abort"] = "Drain"
    """For the requests that run: let them end, keep them and go on with the new weights, or hand back what they have."""
    path: str | None = None
    """Folder of the weights, as the engine's node sees it; null where `adapter` is given."""
    adapter: str | None = None
    """Folder of a LoRA adapter on top of the pool's own weights."""
    checksum: str | None = None
    """`weights_version` of the folder; another content is refused. Null takes what is there."""
    attempt: int = 1
    """A higher one orders the same anew after it failed; who serves it already has nothing to do."""
    transfer: bool = False
    """A trainer waits to move them into the running engine; who offers that not, or knows it not, reads `path`."""


class EngineWelcome(WireMessage):
    certificate: str | None = None
    """PEM of the door's certificate with its chain."""
    heartbeat_seconds: float
    token: str
    """What node agents will show at the door."""
    weights: WeightsTarget | None = None
    """What to serve from the start; null for the model of the pool's spec."""


class EngineLoad(WireMessage):
    """Totals since the engine's start; null is what it does not say. What they say together is in
    `server/routing/endpoint_rates.py`."""

    life: int = 0
    """Which start of the engine within its allocation: with each the totals begin at zero."""
    at: float
    """Seconds on the sender's monotonic clock when they were read."""
    generated_tokens: int | None = None
    prompt_tokens: int | None = None
    """Those found in the prefix cache included."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int | None = None
    """Of those, found."""
    preemptions: int | None = None
    """Requests put back for want of key-value cache."""
    first_tokens: int | None = None
    """Requests that got their first token."""
    first_token_seconds: float | None = None
    """From arrival to first token, of all of them together."""


class EngineHeartbeat(WireMessage):
    """POST /v1/engine/heartbeat, answered by `EngineOrders`."""

    identity: Identity
    url: str
    ready: bool
    reason: str = ""
    """Why it is not ready."""
    weights_version: str = ""
    """The one that it serves and has proven; empty before that."""
    weights_checksum: str = ""
    """Of the folder that they came from."""
    weights_phase: Literal["", "Draining", "Transferring", "Loading", "Probing", "Failed"] = ""
    """How far it is with the last order; empty when it has done it. Transferring: it waits for the trainer."""
    weights_error: str = ""
    """Why it could not."""
    weights_attempt: int | None = None
    """`attempt` of the order that `Failed` is about; null from an engine that does not say it."""
    weights_note: str | None = None
    """Why it read the folder where a transfer was ordered, else empty; null from an engine that knows no transfers."""
    running: int = 0
    waiting: int | None = None
    """Requests that wait in the engine; null when it does not say so."""
    kv_usage: float | None = None
    """Filled share of its key-value cache, 0 to 1; null when it does not say so."""
    load: EngineLoad | None = None
    """What it has done; null when it does not say so."""


class EngineOrders(WireMessage):
    known: bool = True
    """False: register again."""
    drain: bool = False
    weights: WeightsTarget | None = None
