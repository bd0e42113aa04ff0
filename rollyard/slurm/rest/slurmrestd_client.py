"""Asking slurmrestd as who we are: JSON in, JSON out. Whatever is no JSON answer, in time, is SlurmUnreachable."""

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
        """Whose token went with the last request; empty where none did."""

    async def user(self) -> str:
        """Whose jobs are ours."""
        return self._identity.user(await asyncio.to_thread(self._identity.read))

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Body | None,
        read: Callable[[bytes], Awaitable[T]],
    ) -> T:
        """What `read` makes of the answer's body, of any status; it raises NotJson for what is none.

        Raises SlurmUnreachable.
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
            said = " ".join(raw[:200].decode(errors="replace").split())
            raise SlurmUnreachable(f"slurmrestd at {self._address} answered {status} to {path}: {said!r}") from None

    async def _headers(self) -> dict[str, str]:
        token = await asyncio.to_thread(self._identity.read)
        self._presented = "" if token is None else self._identity.user(token)
        return {} if token is None else {"X-SLURM-USER-NAME": self._presented, "X-SLURM-USER-TOKEN": token}

    def token_hint(self) -> str:
        """To add to a complaint that may be about our token: slurmrestd passes it on, and does not say what came of it."""
        if not self._presented:
            return ""
        return f" (if slurmctld works, it refuses this token of {self._presented}; {self._identity.renewal_advice()})"

    def _rejected_message(self) -> str:
        what = f"refuses the token of {self._presented}" if self._presented else "needs a token"
        return f"slurmrestd at {self._address} {what}; {self._identity.renewal_advice()}"
