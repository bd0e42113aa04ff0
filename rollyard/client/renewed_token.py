"""Bearer token of a client's requests, read again from its file when the server refuses it.

`rollyard token rotate` writes new tokens to the files of running jobs and to the kubeconfig.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import hdrs
from aiohttp.client_middlewares import ClientHandlerType


class RenewedToken:
    """Middleware of a client session. A refused request is sent once more if the file has another token by now."""

    def __init__(self, token: str, read: Callable[[], str]) -> None:
        """`read`: returns the token in the file. Raises OSError or an error of the file's format."""
        self._token = token
        self._read = read

    async def __call__(self, request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
        used = self._token
        request.headers[hdrs.AUTHORIZATION] = f"Bearer {used}"
        answer = await handler(request)
        if answer.status != 401:
            return answer
        try:  # in a thread, because shared storage may stall
            self._token = await asyncio.to_thread(self._read)
        except Exception:  # noqa: BLE001 - the refusal says more than a file that cannot be read
            return answer
        if self._token == used:
            return answer
        answer.release()
        request.headers[hdrs.AUTHORIZATION] = f"Bearer {self._token}"
        return await handler(request)
