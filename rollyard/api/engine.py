"""Routes of engines: registration, certificate, heartbeats."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.allocation_binding import bind
from rollyard.api.auth import token_allocation
from rollyard.api.error_status import validated
from rollyard.api.services import SERVICES
from rollyard.core.errors import Incompatible, Invalid
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.weights import WeightsStatus
from rollyard.server.routing.endpoint_registry import HEARTBEAT_SECONDS
from rollyard.server.routing.endpoint_state import endpoint_id
from rollyard.server.weights.engine_target import target_for
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.base import protocol_refusal
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.engine import (
    EngineHeartbeat,
    EngineHello,
    EngineOrders,
    EngineWelcome,
    WeightsTarget,
    token_digest,
)

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 30.0
"""Seconds for which a model server accepts a token after the token's overlap. The rollouts under way get the new token in
this time."""


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/engine/register", _register), web.post("/v1/engine/heartbeat", _heartbeat)]


async def _register(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    body = await request_bodies.read_message(request)
    if refusal := protocol_refusal(body):
        log.warning("an engine was refused: %s", refusal)
        raise Incompatible(refusal)
    hello = validated(EngineHello, body, "the registration", extra="ignore")
    identity = hello.identity
    token_allocation(request, identity.uid)
    host = urlsplit(hello.url).hostname
    if host is None:
        raise Invalid(f"url must be https://HOST:PORT, not {hello.url!r}")
    allocation = await bind(services.store.objects, services.clock, identity)
    key = InferencePool.key_of(identity.namespace, allocation.spec.pool.name)
    pool = await services.store.objects.get(key, InferencePool)
    model = pool.spec.model
    # Every registration gives the same token, unless there was a rotation, because node agents keep the token that they
    # got with a rollout's lease.
    token = services.signer.issue(Role.ENDPOINT, identity.uid, None)
    endpoint = Endpoint(
        id=endpoint_id(identity),
        url=hello.url,
        token=token,
        model=model.served_name,
        weights_version="",
        tokenizer=model.tokenizer or model.path,
        tool_parser=model.tool_parser,
        logprobs=pool.spec.engine.logprobs,
    )
    pool_key, weights, template = pool.pool_key, pool.status.weights, allocation.spec.template
    capacity = max(1, template.gpus * template.nodes)
    services.endpoints.register(pool_key, identity, endpoint, allocation.spec.model, weights, capacity=capacity)
    # A process that asks for a certificate has just started. A process that has a certificate has reconnected, and keeps
    # its weights.
    order = _weights_order(weights, allocation.spec.model, endpoint.id, fresh=hello.csr is not None)
    services.endpoints.note_order(endpoint.id, order)
    certificate = services.authority.sign_csr(hello.csr, [host]) if hello.csr else None
    welcome = EngineWelcome(certificate=certificate, heartbeat_seconds=HEARTBEAT_SECONDS, token=token, weights=order)
    return web.json_response(welcome.model_dump())


def _weights_order(weights: WeightsStatus, model: str | None, id: str, *, fresh: bool = False) -> WeightsTarget | None:
    """Return the weights that an engine must serve; None if these are the weights in the engine's own model folder.

    The result is None too if the pool now has another model folder, because a successor will then replace the engine.
    """
    return target_for(weights, id, fresh=fresh) if model in (None, weights.model) else None


async def _heartbeat(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    beat = validated(EngineHeartbeat, await request_bodies.read_message(request), "the heartbeat", extra="ignore")
    token_allocation(request, beat.identity.uid)
    id = endpoint_id(beat.identity)
    known = services.endpoints.heartbeat(id, beat)
    state = services.endpoints.get(id)
    if state is None:
        return web.json_response(EngineOrders(known=False).model_dump())
    tokens = services.signer.valid(Role.ENDPOINT, beat.identity.uid, services.clock.time() - RENEWAL_SECONDS)
    if known and beat.token == token_digest(tokens[0]):
        services.endpoints.renew_token(id, tokens[0])
    # An engine that serves nothing yet keeps the target that it got when it registered, until the pool's reconciler has
    # seen it.
    fresh = not beat.weights.version
    order = _weights_order(services.endpoints.weights(state.pool), state.model, id, fresh=fresh)
    services.endpoints.note_order(id, order)
    orders = EngineOrders(known=known, drain=state.drain, weights=order, tokens=tokens)
    return web.json_response(orders.model_dump())
