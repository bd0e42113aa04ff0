"""The web application: all routes, with middleware that checks tokens and returns errors as `Status` objects."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rollyard.api import (
    attach,
    auth,
    batches,
    changes,
    costly_answers,
    datasets,
    discovery,
    drains,
    endpoints,
    engine,
    error_status,
    evaluations,
    forks,
    health,
    images,
    listener,
    logs,
    long_responses,
    metric_history,
    metrics,
    node,
    objects,
    openapi,
    page,
    preview,
    query_parameters,
    reviews,
    rollout_profile,
    rollouts,
    running_turns,
    saved_turns,
    scale,
    sessions,
    snapshots,
    submit_body,
    successors,
    token_texts,
    tokens,
    top,
    unread_answers,
    usage,
    weights,
    weights_transfer,
)
from rollyard.api.services import SERVICES, Services
from rollyard.core.http_1_0 import end_stream_by_closing
from rollyard.core.http_body import continue_on_demand

FAMILIES = (
    discovery, health, openapi, reviews, logs, preview, endpoints, top, weights, weights_transfer, scale, drains, objects,
    changes, rollout_profile, rollouts, running_turns, token_texts, batches, datasets, evaluations, usage, successors,
    snapshots, forks, images, sessions, tokens, node, attach, engine, metrics, metric_history, page, saved_turns,
)  # fmt: skip
WITH_STATE = (
    listener,
    long_responses,
    costly_answers,
    unread_answers,
    objects,
    snapshots,
    submit_body,
    attach,
    datasets,
    evaluations,
    weights_transfer,
)
"""Modules that keep something in the application."""


def routes() -> list[web.RouteDef]:
    """Return all routes except those of the gateway, which `sessions.set_up` mounts."""
    return [route for family in FAMILIES for route in family.routes()]


def build(services: Services) -> web.Application:
    """Build the aiohttp application, without TLS."""
    check = auth.authenticate(services.signer, services.clock)
    checks = [error_status.errors_as_status, check, query_parameters.known_parameters]
    app = web.Application(middlewares=[unread_answers.large_answers, *checks])
    app.on_response_prepare.append(end_stream_by_closing)
    app[SERVICES] = services
    for module in WITH_STATE:
        module.set_up(app)
    app.add_routes(_send_continue_late(routes()))
    sessions.set_up(app, services)
    return app


def _send_continue_late(routes: Sequence[web.RouteDef]) -> list[web.RouteDef]:
    return [
        web.RouteDef(r.method, r.path, r.handler, {**r.kwargs, "expect_handler": continue_on_demand}) for r in routes
    ]
