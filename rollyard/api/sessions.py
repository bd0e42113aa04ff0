"""Sessions of external agents: routes to open, list, read, close and delete them. Model calls go to `/gateway/…`."""

from __future__ import annotations

from aiohttp import web

from rollyard.api import request_bodies
from rollyard.api.auth import GATEWAY
from rollyard.api.error_status import validated
from rollyard.api.listener import mark_trusted
from rollyard.api.query_parameters import accepts, namespace_of
from rollyard.api.services import SERVICES, Services
from rollyard.core.errors import Cause, Invalid, NotFound, Unauthorized, Unavailable
from rollyard.gateway.app import build
from rollyard.gateway.external.external_session import ExternalSession
from rollyard.gateway.requests.call_errors import GatewayError, no_session
from rollyard.gateway.session.session import GatewaySession
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.session import SessionOpened, SessionRequest
from rollyard.trust.bearer_tokens import Claims, Role


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/sessions", _open),
        web.get("/v1/sessions", _list),
        web.get("/v1/sessions/{id}", _get),
        web.post("/v1/sessions/{id}/close", _close),
        web.delete("/v1/sessions/{id}", _delete),
    ]


def set_up(app: web.Application, services: Services) -> None:
    """Mount the gateway. When the server stops, the gateway's open calls end."""

    async def find(request: web.Request, named: str | None) -> GatewaySession:
        return await _session_for_call(services, request, named)

    async def end(_: web.Application) -> None:
        services.sessions.end_calls()

    app.add_subapp(GATEWAY, build(find))
    app.on_shutdown.append(end)


@accepts("namespace")
async def _open(request: web.Request) -> web.Response:
    """Open a session. The answer is 201 for a new session, 200 if an open one with the same id and body exists."""
    services, namespace = request.app[SERVICES], namespace_of(request)
    wanted = validated(SessionRequest, await request_bodies.read_message(request), "the session")
    pool = await _pool(services, namespace, wanted)
    try:
        found, new = await services.sessions.open(namespace, wanted, services.clock.time())
    except Unavailable as error:
        raise Unavailable(f"{error}; {_retry_advice(pool)}", retry_after=error.retry_after) from None
    key = services.signer.issue(Role.SESSION, f"{found.id}/{found.instance}")
    return web.json_response(_opened_response(request, found, key).model_dump(mode="json"), status=201 if new else 200)


def _opened_response(request: web.Request, found: ExternalSession, key: str) -> SessionOpened:
    # The URL has the host name that the caller used.
    base = f"{request.url.origin()}{GATEWAY}s/{found.id}"
    return SessionOpened(**dict(found.view()), base_url=f"{base}/v1", anthropic_base_url=base, key=key)


async def _pool(services: Services, namespace: str, wanted: SessionRequest) -> InferencePool:
    """Return the pool for a session. Raises Invalid if the pool is missing or being deleted, or if its engines are
    external and the request names a weights version.
    """
    pool = await services.pools.named(InferencePool, namespace, wanted.pool)
    if wanted.min_weights_version is not None and pool.spec.engine.external is not None:
        message = (
            f"the engines of InferencePool {wanted.pool!r} are external, so their weights are not known: leave out "
            "min_weights_version"
        )
        raise Invalid(message, causes=[Cause("min_weights_version", message)])
    return pool


def _retry_advice(pool: InferencePool) -> str:
    """Return advice for a session that cannot be opened now."""
    spec = pool.spec
    if spec.suspend:
        return "spec.suspend is true, so the pool starts none; resume it"
    if spec.engine.external is not None:
        return "others start them; the pool's conditions show why none is ready"
    if spec.autoscaling is None and not spec.replicas:
        return "spec.replicas is 0: scale the pool up, or give it spec.autoscaling"
    if spec.autoscaling is None:
        return "the pool's conditions show why; try again"
    return (
        f"the request counts as demand, up to spec.autoscaling.maxReplicas ({spec.autoscaling.max_replicas}): try again with "
        "the same `id`. An engine takes minutes to start; the pool's conditions show its progress"
    )


@accepts("namespace")
async def _list(request: web.Request) -> web.Response:
    """List sessions without their trajectories."""
    found = request.app[SERVICES].sessions.all(namespace_of(request))
    return web.json_response({"sessions": [one.view().model_dump(mode="json") for one in found]})


@accepts("namespace")
async def _get(request: web.Request) -> web.Response:
    """Read a session with its trajectory so far."""
    return await _record(request, _id(request))


@accepts("namespace")
async def _close(request: web.Request) -> web.Response:
    """Close a session and read its trajectory."""
    id = _id(request)
    await request.app[SERVICES].sessions.close(id)
    return await _record(request, id)


@accepts("namespace")
async def _delete(request: web.Request) -> web.Response:
    """Delete a session and its trajectory; return the session's last state."""
    ended = await request.app[SERVICES].sessions.drop(_id(request), "it was deleted")
    return web.json_response(ended.view().model_dump(mode="json"))


async def _record(request: web.Request, id: str) -> web.Response:
    body = await request.app[SERVICES].sessions.record(id)
    return web.Response(text=body, content_type="application/json")


def _id(request: web.Request) -> str:
    """Return the id in the path. Raises NotFound or Expired if the namespace in the request has no such session."""
    id, namespace = request.match_info["id"], request.query.get("namespace")
    if namespace is not None:
        own = request.app[SERVICES].sessions.get(id).pool.namespace
        if own != namespace:
            raise NotFound(
                f"there is no session {id!r} in namespace {namespace!r}; a session with this id is in {own!r}"
            )
    return id


async def _session_for_call(services: Services, request: web.Request, named: str | None) -> GatewaySession:
    """Return the session of a model call. A session's key selects its own session.

    `named`: id of a session from the request. A call with an admin's token must name a session; a call with a key need
    not. Raises GatewayError.
    """
    claims = _claims(services, request)
    mark_trusted(request)
    if claims.role is Role.ADMIN:
        if named is None:
            raise no_session(
                "name the session in the path (/gateway/s/ID/v1) or in X-Rollyard-Session, or send the session's own key"
            )
        return await services.sessions.session_for_call(named, None)
    if claims.role is not Role.SESSION:
        raise GatewayError(
            403, "permission_error", f"a token of role {claims.role.value} cannot use a session; send the session's key"
        )
    id, _, instance = claims.subject.partition("/")
    if named not in (None, id):
        raise GatewayError(403, "permission_error", f"this key belongs to session {id!r}, not to {named!r}")
    return await services.sessions.session_for_call(id, instance)


def _claims(services: Services, request: web.Request) -> Claims:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = token if scheme.lower() == "bearer" and token else request.headers.get("X-Api-Key", "")
    try:
        return services.signer.verify(key.strip(), services.clock.time())
    except Unauthorized:
        raise no_session(
            "send the session's key (POST /v1/sessions returns it) as `Authorization: Bearer …` or `x-api-key`"
        ) from None
