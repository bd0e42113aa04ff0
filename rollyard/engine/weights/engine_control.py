"""What can be done to a running engine, whichever it is: stop it between two steps, give it other weights, let it go on.

All of it goes over the engine's Unix socket, by paths that the door opens to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import aiohttp

from rollyard.engine.weights.source import CheckpointInfo, WeightsSource

ENGINE = "http://engine"
COMMAND_SECONDS = 60.0
LOAD_SECONDS = 1800.0
"""Large weights from a shared disk take minutes."""
MAX_ERROR_CHARS = 300


class ControlFailed(Exception):
    """The engine did not do it; what state it is in is unknown."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost
        """It did not even answer."""


class EngineControl(Protocol):
    labels_tokens: bool
    """Whether its answers themselves say which version of the weights made which token."""
    can_pause: bool
    """Whether it can be stopped between two steps."""
    stages_transfers: bool
    """Whether a transfer changes nothing before it is finished."""

    async def detect(self) -> None:
        """Find out what this process can do; before anything else is asked of it. Raises ControlFailed."""

    def why_unsupported(self, source: WeightsSource) -> str:
        """Why neither this process nor another one like it can serve these weights; empty when one can."""

    def why_not_loadable(self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo) -> str:
        """Why this process cannot change to these weights and be right; empty when it can."""

    def can_keep_requests(self, source: WeightsSource, now: WeightsSource) -> bool:
        """Whether requests that run can go on with these weights."""

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        """Returns when no step runs, nor will one before `resume`. Raises ControlFailed, as all that follow."""

    async def resume(self) -> None: ...

    async def load(self, source: WeightsSource, now: WeightsSource | None) -> None:
        """Change the weights of a paused engine; `now` is None for a process that has just been started on the folder."""

    def why_no_transfer(self) -> str:
        """Why nobody can move weights into this process himself; empty when that is possible."""

    async def finish_transfer(self, now: WeightsSource) -> None:
        """A trainer has moved other weights into the paused engine: do what else goes with a change from `now` to them."""

    async def set_version(self, version: str) -> None:
        """Tokens of later steps are this version's."""

    async def round_trip(self) -> None:
        """One question to its HTTP server that goes all the way to the part that computes."""

    def request_fields(self, source: WeightsSource) -> Mapping[str, Any]:
        """What a request's body must say to be answered by these weights, and with no others' keys and values."""


async def command(
    http: aiohttp.ClientSession,
    path: str,
    body: Any = None,
    *,
    params: Mapping[str, str] | None = None,
    seconds: float = COMMAND_SECONDS,
) -> bytes:
    """POST to the engine. Raises ControlFailed with its own words."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with http.post(ENGINE + path, json=body, params=params, timeout=timeout) as answer:
            said = await answer.read()
            if answer.status >= 300:
                words = " ".join(said.decode(errors="replace").split())[:MAX_ERROR_CHARS]
                raise ControlFailed(f"{path} answered {answer.status}: {words}")
            return said
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ControlFailed(f"{path}: {type(error).__name__}", lost=True) from None


async def status(http: aiohttp.ClientSession, path: str) -> int:
    """Of a GET: 404 where there is no such path, 405 where there is one for other methods. Raises ControlFailed."""
    try:
        async with http.get(ENGINE + path, timeout=aiohttp.ClientTimeout(total=COMMAND_SECONDS)) as answer:
            return answer.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ControlFailed(f"{path}: {type(error).__name__}", lost=True) from None
