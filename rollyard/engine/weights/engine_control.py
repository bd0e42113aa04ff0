"""What can be done to a running engine, whichever it is: stop it between two steps, give it other weights, let it go on.

All of it goes over the engine's Unix socket, by paths that the door opens to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import aiohttp

from rollyard.engine.weights.source import Contents, Source

ENGINE = "http://engine"
COMMAND_SECONDS = 60.0
LOAD_SECONDS = 1800.0
"""Large weights from a shared disk take minutes."""
MAX_WORDS = 300


class ControlFailed(Exception):
    """The engine did not do it; what state it is in is unknown."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost
        """It did not even answer."""


class EngineControl(Protocol):
    labels: bool
    """Whether its answers themselves say which version of the weights made which token."""
    pauses: bool
    """Whether it can be stopped between two steps."""
    stages: bool
    """Whether a transfer changes nothing before it is finished."""

    async def look(self) -> None:
        """Find out what this process can do; before anything else is asked of it. Raises ControlFailed."""

    def refuses(self, source: Source) -> str:
        """Why neither this process nor another one like it can serve these weights; empty when one can."""

    def cannot_load(self, source: Source, now: Source, contents: Contents) -> str:
        """Why this process cannot change to these weights and be right; empty when it can."""

    def keeps(self, source: Source, now: Source) -> bool:
        """Whether requests that run can go on with these weights."""

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        """Returns when no step runs, nor will one before `resume`. Raises ControlFailed, as all that follow."""

    async def resume(self) -> None: ...

    async def load(self, source: Source, now: Source | None) -> None:
        """Change the weights of a paused engine; `now` is None for a process that has just been started on the folder."""

    def no_transfer(self) -> str:
        """Why nobody can move weights into this process himself; empty when that is possible."""

    async def moved(self, now: Source) -> None:
        """A trainer has moved other weights into the paused engine: do what else goes with a change from `now` to them."""

    async def name(self, version: str) -> None:
        """Tokens of later steps are this version's."""

    async def turn(self) -> None:
        """One question to its HTTP server that goes all the way to the part that computes."""

    def fields(self, source: Source) -> Mapping[str, Any]:
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
                words = " ".join(said.decode(errors="replace").split())[:MAX_WORDS]
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
