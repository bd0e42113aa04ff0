"""The application: every route, behind one door that asks for a token and answers errors as `Status`."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import generate_latest

from rollyard.api import auth, discovery, endpoints, engine, kinds, logs, node, rollouts, script, status, streams
from rollyard.api.services import SERVICES, Services
from rollyard.kinds.wire import MAX_RESULT_BYTES
from rollyard.telemetry import REGISTRY


def build(services: Services) -> web.Application:
    """An aiohttp application; who runs it brings TLS."""
    check = auth.authenticate(services.signer, services.clock)
    app = web.Application(middlewares=[status.errors_as_status, check], client_max_size=MAX_RESULT_BYTES)
    app[SERVICES] = services
    streams.set_up(app)
    for family in (discovery, logs, script, endpoints, kinds, rollouts, node, engine):
        app.add_routes(family.routes())
    app.add_routes([web.get("/healthz", _healthz), web.get("/metrics", _metrics)])
    return app


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(body=generate_latest(REGISTRY), content_type="text/plain")
