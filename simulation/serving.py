"""An aiohttp application on a free port of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serve_app(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """Serve it during the block; yields its URL. `options`: further ones of `web.AppRunner`."""
    runner = web.AppRunner(app, access_log=None, **({"shutdown_timeout": 0.1} | options))
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # asyncio loses a connection that it has accepted but has no transport for when the server closes
        asyncio.get_running_loop().remove_reader(listener)
        await asyncio.sleep(0)
        await runner.cleanup()
