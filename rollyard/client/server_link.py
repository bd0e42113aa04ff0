"""An allocation's link to its server. Every attempt reads the server's address again, so a moved server is found."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rollyard.client.renewed_token import RenewedToken
from rollyard.core.errors import ApiError, Cause, Unavailable, connection_failure_text, error_from_reason
from rollyard.core.lagging_files import read_when_complete
from rollyard.wire.base import Identity
from rollyard.wire.files import AllocationFile, EndpointFile

log = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
ADDRESS_POLL_SECONDS = 2.0
"""Time between two checks of the server's address during a connection."""


@dataclass(frozen=True)
class ServerLink:
    """Everything that a batch job needs to reach its server. The token is read from a file; the server gave this file
    mode 0600."""

    allocation: AllocationFile
    folder: Path
    token: str
    tls: ssl.SSLContext

    @classmethod
    def open(cls, folder: Path) -> ServerLink:
        """Read an allocation's folder. Raises OSError if a file is still missing after a while, and ValueError for a bad
        file."""
        return read_when_complete(lambda: cls._read(folder), f"the files of {folder}")

    @classmethod
    def _read(cls, folder: Path) -> ServerLink:
        allocation = AllocationFile.model_validate_json((folder / "allocation.json").read_bytes())
        if (uid := os.environ.get("ROLLYARD_ALLOCATION_UID", "")) and allocation.uid != uid:
            raise ValueError(f"{folder}/allocation.json is of an earlier allocation with this name")
        if not (token := _read_token(folder)):
            raise ValueError(f"{folder}/token is empty")
        return cls(allocation, folder, token, ssl.create_default_context(cafile=allocation.ca_file))

    async def url(self) -> str:
        """Return the server's current address. Raises Unavailable if `endpoint.json` cannot be read."""
        try:
            # In a thread, because shared storage may stall, and this event loop also serves token streams and leases.
            data = await asyncio.to_thread(Path(self.allocation.endpoint_file).read_bytes)
            return EndpointFile.model_validate_json(data).url
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self.allocation.endpoint_file} cannot be read: {error}") from None

    def identity(self) -> Identity:
        """Make the identity of this process. Call this once, because each call chooses another `instance`."""
        return Identity(
            allocation=self.allocation.allocation,
            namespace=self.allocation.namespace,
            uid=self.allocation.uid,
            job_id=_job_id(),
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            instance=secrets.token_hex(8),
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        )

    def session(self) -> aiohttp.ClientSession:
        """Make a session for this server. Each request has a time limit of `REQUEST_SECONDS`."""
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=32)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=5.0)
        token = RenewedToken(self.token, lambda: _read_token(self.folder))
        return aiohttp.ClientSession(connector=connector, middlewares=[token], timeout=timeout)

    async def post(self, http: aiohttp.ClientSession, path: str, body: str) -> Any:
        """Post `body` and return the JSON answer. Raises ApiError; Unavailable if the server cannot be reached."""
        url, headers = await self.url() + path, {"Content-Type": "application/json"}
        try:
            async with http.post(url, data=body, headers=headers) as answer:
                await raise_for_status(answer)
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"no answer from the server: {connection_failure_text(error)}") from None


async def raise_for_status(answer: aiohttp.ClientResponse) -> None:
    """Raise the ApiError of an error answer: from its `Status` body if it has one, else from its HTTP code."""
    if answer.status < 400:
        return
    after = answer.headers.get("Retry-After", "")  # Rollyard's server sends seconds; HTTP also allows a date
    retry_after = int(after) if after.isdecimal() else None
    try:
        raise error_from_status(answer.status, await answer.json(), retry_after)
    except (aiohttp.ClientError, ValueError):
        raise error_from_reason(
            answer.status, "", f"HTTP {answer.status} {answer.reason}", retry_after=retry_after
        ) from None


def error_from_status(code: int, status: Any, retry_after: int | None = None) -> ApiError:
    """Return the error that a `Status` object describes. `code`: HTTP code. Raises ValueError for another object."""
    try:
        message, reason = str(status["message"]), str(status["reason"])
        causes = [
            Cause(str(cause.get("field", "")), str(cause.get("message", "")), str(cause.get("reason", "")))
            for cause in (status.get("details") or {}).get("causes") or ()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no Status: {error}") from None
    return error_from_reason(code, reason, message, causes, retry_after=retry_after)


async def wait_until_moved(url: Callable[[], Awaitable[str]], at: str) -> None:
    """Wait until the server's address differs from `at`.

    An open connection does not show that its server is the current one: a server on a frozen or isolated node may keep
    its connections long after another server took over.
    """
    while True:
        await asyncio.sleep(ADDRESS_POLL_SECONDS)
        with contextlib.suppress(Unavailable):
            if await url() != at:
                log.info("the server has moved")
                return


def address_towards(url: str) -> str:
    """Return the address of this machine's interface towards the server. Other nodes reach this machine there."""
    parts = urlsplit(url)
    info = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
        probe.connect(info[4])  # for datagrams, `connect` sends nothing and only selects the route
        return str(probe.getsockname()[0])


def _read_token(folder: Path) -> str:
    return (folder / "token").read_text().strip()


def _job_id() -> str:
    """Return the job id in the server's form. For a task of a job array the form is `<array's id>_<index>`."""
    if step := os.environ.get("ROLLYARD_JOB"):
        return step  # this allocation is a step of a job that the user had already
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")
