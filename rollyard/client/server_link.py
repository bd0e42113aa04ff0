"""An allocation's way to its server: the address is read again before every attempt, so a server that moved is found."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rollyard.core.errors import Cause, Unavailable, connection_failure_text, error_from_reason
from rollyard.wire.base import Identity
from rollyard.wire.files import AllocationFile, EndpointFile

log = logging.getLogger(__name__)

RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 0.2, 5.0
REQUEST_SECONDS = 30.0
ADDRESS_POLL_SECONDS = 2.0
"""Between two looks at where the server is, while there is a connection."""


@dataclass(frozen=True)
class ServerLink:
    """What a batch job knows of its server; secrets come from 0600 files alone."""

    allocation: AllocationFile
    folder: Path
    token: str
    tls: ssl.SSLContext

    @classmethod
    def open(cls, folder: Path) -> ServerLink:
        """From an allocation's folder. Raises OSError, ValueError when it is not one."""
        allocation = AllocationFile.model_validate_json((folder / "allocation.json").read_bytes())
        token = (folder / "token").read_text().strip()
        return cls(allocation, folder, token, ssl.create_default_context(cafile=allocation.ca_file))

    async def url(self) -> str:
        """Where the server is now. Raises Unavailable while it says nothing."""
        try:
            # In a thread: shared storage may stall, and this loop carries token streams and leases.
            data = await asyncio.to_thread(Path(self.allocation.endpoint_file).read_bytes)
            return EndpointFile.model_validate_json(data).url
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self.allocation.endpoint_file} cannot be read: {error}") from None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def identity(self) -> Identity:
        """This process, as Slurm and the local driver name its job."""
        return Identity(
            allocation=self.allocation.allocation,
            namespace=self.allocation.namespace,
            uid=self.allocation.uid,
            job_id=_job_id(),
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            instance=secrets.token_hex(8),
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            pid=os.getpid(),
        )

    def session(self) -> aiohttp.ClientSession:
        """A session for this server; time limits are per request."""
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=32)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=5.0)
        return aiohttp.ClientSession(connector=connector, headers=self.headers, timeout=timeout)

    async def post(self, http: aiohttp.ClientSession, path: str, body: str) -> Any:
        """The JSON answer. Raises ApiError, or Unavailable when the server cannot be reached."""
        url, headers = await self.url() + path, {"Content-Type": "application/json"}
        try:
            async with http.post(url, data=body, headers=headers) as answer:
                await raise_for_status(answer)
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"no answer from the server: {connection_failure_text(error)}") from None


async def raise_for_status(answer: aiohttp.ClientResponse) -> None:
    """An error answer as the ApiError that its `Status` body stands for."""
    if answer.status < 400:
        return
    causes: list[Cause] = []
    try:
        body = await answer.json()
        message, reason = str(body["message"]), str(body["reason"])
        for cause in (body.get("details") or {}).get("causes") or ():
            causes.append(
                Cause(str(cause.get("field", "")), str(cause.get("message", "")), str(cause.get("reason", "")))
            )
    except (aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError):
        message, reason = f"HTTP {answer.status} {answer.reason}", ""
    after = answer.headers.get("Retry-After", "")  # a date, which it may be too, is nothing that our server says
    raise error_from_reason(
        answer.status, reason, message, causes, retry_after=int(after) if after.isdecimal() else None
    )


async def wait_until_moved(url: Callable[[], Awaitable[str]], at: str) -> None:
    """Returns once the server is elsewhere.

    One on a node that froze, or was cut off, may keep its connections long after another took over.
    """
    while True:
        await asyncio.sleep(ADDRESS_POLL_SECONDS)
        with contextlib.suppress(Unavailable):
            if await url() != at:
                log.info("the server has moved")
                return


class Backoff:
    """Waits between attempts: doubling, capped, with full jitter."""

    def __init__(self, first: float = RETRY_FIRST_SECONDS, cap: float = RETRY_CAP_SECONDS) -> None:
        self._first, self._cap, self._tries = first, cap, 0

    def reset(self) -> None:
        self._tries = 0

    def seconds(self) -> float:
        """How long the next wait is to be."""
        ceiling = min(self._cap, self._first * 2.0**self._tries)
        self._tries += 1
        return random.uniform(ceiling / 4, ceiling)

    async def wait(self, at_least: float = 0.0) -> None:
        """`at_least`: seconds that the other side asked for."""
        await asyncio.sleep(max(at_least, self.seconds()))


def address_towards(url: str) -> str:
    """The address of this machine's interface that reaches the server: what others on its network reach us by."""
    parts = urlsplit(url)
    info = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
        probe.connect(info[4])  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])


def _job_id() -> str:
    """As the server knows it: a task of an array by the array's id and its index, though it has an id of its own too."""
    if step := os.environ.get("ROLLYARD_JOB"):
        return step  # of a job that somebody holds
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")
