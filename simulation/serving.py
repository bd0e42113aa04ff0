"""An aiohttp application on a free port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serve_app(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """Serve it during the block; yields its URL. `options`: further ones of `web.AppRunner`."""
    runner = web.AppRunner(app, access_log=None, **({"shutdown_timeout": 0.1} | options))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
