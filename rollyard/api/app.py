"""The application: every route, behind one door that asks for a token and answers errors as `Status`."""

from __future__ import annotations

from aiohttp import web

from rollyard.api import (
    auth,
    discovery,
    endpoints,
    engine,
    kinds,
    logs,
    metrics,
    node,
    rollouts,
    script,
    sessions,
    status,
    streams,
    top,
    transfer,
    weights,
)
from rollyard.api.services import SERVICES, Services
from rollyard.kinds.wire import MAX_RESULT_BYTES


def build(services: Services) -> web.Application:
    """An aiohttp application; who runs it brings TLS."""
    check = auth.authenticate(services.signer, services.clock)
    app = web.Application(middlewares=[status.errors_as_status, check], client_max_size=MAX_RESULT_BYTES)
    app[SERVICES] = services
    streams.set_up(app)
    for family in (
        discovery, logs, script, endpoints, top, weights, transfer, kinds, rollouts, sessions, node, engine, metrics,
    ):  # fmt: skip
        app.add_routes(family.routes())
    sessions.set_up(app, services)
    transfer.set_up(app)
    app.add_routes([web.get("/healthz", _healthz)])
    return app


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")
