"""Sessions of agents outside of sandboxes: what opens one, how it stands, what it comes to.

A session lives in the server's memory alone; `durable` says so wherever one is shown.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollyard.kinds.base import NAME_PATTERN, Wire
from rollyard.kinds.rollout import RolloutId, Sampling, Segment, Turn
from rollyard.kinds.weights import VERSION_PATTERN

IDLE_SECONDS, MAX_IDLE_SECONDS = 900.0, 14_400.0


class SessionRequest(Wire):
    """POST /v1/sessions."""

    id: RolloutId | None = None
    """Caller's id. The same id with the same body attaches to the session there is; with another body it is a 409."""
    pool: str = Field(pattern=NAME_PATTERN)
    """InferencePool that answers."""
    sampling: Sampling = Sampling()
    caller_sampling: bool = False
    """Sampling parameters that a call names hold for it; otherwise `sampling` does, whatever the calls ask for."""
    max_calls: int | None = Field(default=None, ge=1, le=10_000)
    """Model calls; further ones are refused. Null for no limit."""
    tool_parser: str | None = Field(default=None, min_length=1, max_length=64)
    """Form in which the model writes tool calls; left out, the model's chat template shows it."""
    min_weights_version: str | None = Field(default=None, pattern=VERSION_PATTERN, max_length=64)
    """Sampled by nothing older than this version of the pool's weights, as a rollout's is. Until there is such an endpoint
    no session opens."""
    idle_seconds: float = Field(default=IDLE_SECONDS, ge=1, le=MAX_IDLE_SECONDS)
    """The session is dropped, and its trajectory with it, when for so long it was neither called nor looked at."""


class SessionView(Wire):
    """A session without its trajectory."""

    id: str
    namespace: str
    pool: str
    state: Literal["Open", "Closed"]
    endpoint: str
    """Id of the model server that it stays with."""
    calls: int
    """Model calls that were answered."""
    in_flight: int
    waiting: str = ""
    """Why the calls in flight have no model server to go on at; empty where they have one."""
    tokens: int
    """In all segments, prompts included."""
    truncated: bool
    """A limit was reached: of calls, or of the context."""
    created_at: float
    """Unix seconds."""
    expires_in_idle: float
    """Seconds without a call or a look until it is dropped."""
    durable: Literal[False] = False


class SessionOpened(SessionView):
    """The answer to POST."""

    base_url: str
    """For clients of OpenAI's API."""
    anthropic_base_url: str
    """For clients of Anthropic's, which put `/v1` behind it themselves."""
    key: str
    """Opens this session and nothing else; for `Authorization: Bearer` or `x-api-key`."""


class SessionTrajectory(Wire):
    """What was sampled so far, in the shapes of a rollout's trajectory."""

    segments: list[Segment]
    turns: list[Turn]
    breaks: dict[str, int]
    """Breaks of the token prefix by cause."""


class SessionRecord(Wire):
    """The answer to GET and to close."""

    session: SessionView
    trajectory: SessionTrajectory
