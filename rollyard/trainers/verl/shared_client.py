"""One client for all agent loops of a process. verl makes an agent loop for each sample, and tells none of them its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollyard.client import AsyncClient


@dataclass
class _Open:
    client: AsyncClient
    users: int = 0


_clients: dict[tuple[asyncio.AbstractEventLoop, str | None], _Open] = {}


@asynccontextmanager
async def shared_client(kubeconfig: str | None) -> AsyncIterator[AsyncClient]:
    """Yield the client of this event loop. When its last user leaves, it is closed. Raises BadRequest."""
    key = asyncio.get_running_loop(), kubeconfig
    if key not in _clients:
        _clients[key] = _Open(AsyncClient(kubeconfig=kubeconfig))
    entry = _clients[key]
    entry.users += 1
    try:
        yield entry.client
    finally:
        entry.users -= 1
        if not entry.users:
            async with _clients.pop(key).client:
                pass
