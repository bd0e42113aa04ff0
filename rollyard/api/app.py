"""The application: every route, behind one door that asks for a token and answers errors as `Status`."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rollyard.api import (
    auth,
    discovery,
    endpoints,
    engine,
    kinds,
    listener,
    logs,
    metrics,
    node,
    query,
    rollouts,
    script,
    sessions,
    status,
    streams,
    submits,
    top,
    transfer,
    weights,
)
from rollyard.api.services import SERVICES, Services
from rollyard.gateway.incoming import asked_later

FAMILIES = (
    discovery, logs, script, endpoints, top, weights, transfer, kinds, rollouts, sessions, node, engine, metrics,
)  # fmt: skip


def routes() -> list[web.RouteDef]:
    """Every route; the gateway's APIs are mounted beside them (`sessions.set_up`)."""
    return [*(route for family in FAMILIES for route in family.routes()), web.get("/healthz", _healthz)]


def build(services: Services) -> web.Application:
    """An aiohttp application; who runs it brings TLS."""
    check = auth.authenticate(services.signer, services.clock)
    app = web.Application(middlewares=[status.errors_as_status, check, query.known_parameters])
    app[SERVICES] = services
    listener.set_up(app)
    streams.set_up(app)
    app.add_routes(_asked_later(routes()))
    sessions.set_up(app, services)
    submits.set_up(app)
    transfer.set_up(app)
    return app


def _asked_later(routes: Sequence[web.RouteDef]) -> list[web.RouteDef]:
    return [web.RouteDef(r.method, r.path, r.handler, {**r.kwargs, "expect_handler": asked_later}) for r in routes]


async def _healthz(_: web.Request) -> web.Response:
    """`ok` while the server answers."""
    return web.Response(text="ok")
