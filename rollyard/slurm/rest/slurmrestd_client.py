"""Client of slurmrestd that sends JSON with our credentials. Raises SlurmUnreachable if no JSON comes back in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.rest.address import SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.codec import Body, NotJson
from rollyard.slurm.rest.http_exchange import request

T = TypeVar("T")
REJECTED_STATUSES = (401, 403)


class SlurmrestdClient:
    def __init__(self, address: SlurmrestdAddress, identity: SlurmCredentials, limit_seconds: float) -> None:
        self._address, self._identity, self._limit = address, identity, limit_seconds
        self._presented = ""
        """User of the last request's token; empty if the request had no token."""

    async def user(self) -> str:
        """Return the name of the user who owns our jobs."""
        return self._identity.user(await asyncio.to_thread(self._identity.read))

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Body | None,
        read: Callable[[bytes], Awaitable[T]],
    ) -> T:
        """Send a request; return the body of the answer, parsed by `read`.

        `read` raises NotJson if the body is not JSON; its other errors are raised unchanged. Raises SlurmUnreachable if
        the token cannot be read or has expired, if the connection fails, if there is no answer in time, if the token is
        rejected (401, 403) or if the body is not JSON. Other statuses are accepted, because the body has the error.
        """
        headers = await self._headers()
        target = f"{path}?{urlencode(query)}" if query else path
        data = json.dumps(body).encode() if body is not None else None
        try:
            async with asyncio.timeout(self._limit):
                status, raw = await request(self._address, method, target, headers, data)
        except TimeoutError:
            raise SlurmUnreachable(f"slurmrestd at {self._address} did not answer within {self._limit:g} s") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise SlurmUnreachable(f"slurmrestd at {self._address}: {error or type(error).__name__}") from None
        if status in REJECTED_STATUSES:
            raise SlurmUnreachable(self._rejected_message())
        try:
            return await read(raw)
        except NotJson:
            start = " ".join(raw[:200].decode(errors="replace").split())
            raise SlurmUnreachable(f"slurmrestd at {self._address} answered {status} to {path}: {start!r}") from None

    async def _headers(self) -> dict[str, str]:
        token = await asyncio.to_thread(self._identity.read)
        self._presented = "" if token is None else self._identity.user(token)
        return {} if token is None else {"X-SLURM-USER-NAME": self._presented, "X-SLURM-USER-TOKEN": token}

    def token_hint(self) -> str:
        """Return a hint for errors that our token may have caused; empty if no token was sent. If slurmctld refuses the
        token, slurmrestd does not report this refusal."""
        if not self._presented:
            return ""
        return f" (if slurmctld works, it refuses this token of {self._presented}; {self._identity.renewal_advice()})"

    def _rejected_message(self) -> str:
        what = f"refuses the token of {self._presented}" if self._presented else "needs a token"
        return f"slurmrestd at {self._address} {what}; {self._identity.renewal_advice()}"
