"""The interface to control any running engine: pause it between two steps, load other weights, resume.

All calls go over the engine's Unix socket. The reverse proxy does not expose the paths of commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import aiohttp

from rollyard.engine.weights.source import WeightsSource
from rollyard.model_folder.checkpoint_info import CheckpointInfo

ENGINE = "http://engine"
COMMAND_SECONDS = 60.0
LOAD_SECONDS = 1800.0
"""Limit for loading: large weights from a shared disk take minutes."""
MAX_ERROR_CHARS = 300


class ControlFailed(Exception):
    """The engine did not carry out a command. The engine's state is unknown."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost
        """True: the engine did not answer at all."""


class EngineControl(Protocol):
    """Control of one engine. By default nothing has to be found out, and the engine can do everything."""

    labels_tokens: bool
    """Whether the engine's answers have the weights version of each token."""
    can_pause: bool
    """Whether the engine can be paused between two steps."""
    buffers_transfers: bool
    """Whether the served weights stay unchanged until a transfer is finished."""

    async def detect(self) -> None:
        """Find out what the present process can do. Call this first, for each new process. Raises ControlFailed."""
        return

    def why_unsupported(self, source: WeightsSource) -> str:
        """Return why no process of this engine can serve these weights; empty if one can."""
        return ""

    def why_not_loadable(self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo) -> str:
        """Return why the present process cannot change to these weights correctly; empty if it can."""
        return ""

    def can_keep_requests(self, source: WeightsSource, now: WeightsSource) -> bool:
        """Return whether running requests can continue with these weights."""
        return True

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        """Pause the engine. When this method returns, no step runs, and no step starts until `resume`. `requests`:
        whether running requests are kept or aborted. Raises ControlFailed, like all asynchronous methods."""

    async def resume(self) -> None: ...

    async def load(self, source: WeightsSource, now: WeightsSource | None) -> None:
        """Change the weights of the engine from `now` to `source`. `now` is None for a process that was just started on
        the folder of `source`; such a process loads only the adapter, and is not paused."""

    def why_no_transfer(self) -> str:
        """Return why a trainer cannot move weights into the present process; empty if it can."""
        return ""

    async def finish_transfer(self, now: WeightsSource) -> None:
        """Finish a change from `now`, after a trainer has moved other weights into the paused engine."""
        return

    async def set_version(self, version: str) -> None:
        """Name the weights. Tokens of later steps have this version."""

    async def round_trip(self) -> None:
        """Send the engine's HTTP server one request, and wait for the answer."""

    def request_fields(self, source: WeightsSource) -> Mapping[str, Any]:
        """Return the fields to set in the body of a request. The fields select these weights, and prevent the use of
        cached keys and values of other weights."""
        return {}


async def command(
    http: aiohttp.ClientSession,
    path: str,
    body: Any = None,
    *,
    params: Mapping[str, str] | None = None,
    seconds: float = COMMAND_SECONDS,
) -> bytes:
    """POST to the engine. Raises ControlFailed with the engine's own message, or with `lost` if there is no answer."""
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with http.post(ENGINE + path, json=body, params=params, timeout=timeout) as answer:
            raw = await answer.read()
            if answer.status >= 300:
                words = " ".join(raw.decode(errors="replace").split())[:MAX_ERROR_CHARS]
                raise ControlFailed(f"{path} answered {answer.status}: {words}")
            return raw
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ControlFailed(f"{path}: {type(error).__name__}", lost=True) from None


async def status(http: aiohttp.ClientSession, path: str) -> int:
    """Return the status of a GET: 404 for an unknown path, 405 for a path with other methods. Raises ControlFailed."""
    try:
        async with http.get(ENGINE + path, timeout=aiohttp.ClientTimeout(total=COMMAND_SECONDS)) as answer:
            return answer.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ControlFailed(f"{path}: {type(error).__name__}", lost=True) from None
