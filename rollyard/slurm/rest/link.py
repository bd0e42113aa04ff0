"""One conversation with slurmrestd: requests in, JSON out. Whatever is no JSON answer is SlurmUnreachable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import aiohttp

from rollyard.errors import SlurmUnreachable
from rollyard.slurm.rest.address import Address, Identity
from rollyard.slurm.rest.codec import Body

NOT_WANTED = (401, 403)


class Link:
    def __init__(self, address: Address, identity: Identity, limit_seconds: float) -> None:
        self._address, self._identity, self._limit = address, identity, limit_seconds
        self._session: aiohttp.ClientSession | None = None

    async def user(self) -> str:
        """Whose jobs are ours."""
        return self._identity.user(await asyncio.to_thread(self._identity.read))

    async def call(self, method: str, path: str, query: Mapping[str, str], body: Body | None = None) -> Body:
        """The answer's body, of any status. Raises SlurmUnreachable."""
        url, headers = self._address.url + path, await self._headers()
        try:
            async with (
                asyncio.timeout(self._limit),
                self._open().request(method, url, params=query, json=body, headers=headers) as answer,
            ):
                status, raw = answer.status, await answer.read()
        except TimeoutError:
            raise SlurmUnreachable(f"slurmrestd at {self._address} did not answer within {self._limit:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SlurmUnreachable(f"slurmrestd at {self._address}: {error or type(error).__name__}") from None
        if status in NOT_WANTED:
            raise SlurmUnreachable(self._unwanted(headers))
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            said = " ".join(raw[:200].decode(errors="replace").split())
            raise SlurmUnreachable(f"slurmrestd at {self._address} answered {status} to {path}: {said!r}")
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            socket = self._address.socket
            connector = aiohttp.UnixConnector(socket) if socket is not None else aiohttp.TCPConnector()
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    async def _headers(self) -> dict[str, str]:
        token = await asyncio.to_thread(self._identity.read)
        if token is None:
            return {}
        return {"X-SLURM-USER-NAME": self._identity.user(token), "X-SLURM-USER-TOKEN": token}

    def _unwanted(self, headers: Mapping[str, str]) -> str:
        if not headers:
            return f"slurmrestd at {self._address} wants a token; {self._identity.renewal()}"
        user = headers["X-SLURM-USER-NAME"]
        return f"slurmrestd at {self._address} does not take the token of {user}; {self._identity.renewal()}"
