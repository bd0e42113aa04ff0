"""Authorization by the request's path and the token's role. A node agent or engine can use only its own allocation."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Middleware

from rollyard.api.error_status import Handler
from rollyard.api.listener import mark_trusted
from rollyard.core.clock import Clock
from rollyard.core.errors import Forbidden, Unauthorized
from rollyard.trust.bearer_tokens import Claims, Role, TokenSigner

CLAIMS: web.RequestKey[Claims] = web.RequestKey("claims", Claims)
GATEWAY = "/gateway/"
"""Prefix of the gateway's paths. The gateway accepts the key of a session, or an admin's token."""
_ROLE_OF_PREFIX = (("/v1/node/", Role.NODE), ("/v1/engine/", Role.ENGINE))


def authenticate(signer: TokenSigner, clock: Clock) -> Middleware:
    """Return middleware that refuses a request without a valid token (401), or with a token of the wrong role (403).

    It does not check requests to the gateway, because the gateway checks their tokens itself.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(GATEWAY):
            return await handler(request)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("send a token: `Authorization: Bearer …`; admin.kubeconfig in the data folder has one")
        claims = signer.verify(token.strip(), clock.time())
        needed = next((role for prefix, role in _ROLE_OF_PREFIX if request.path.startswith(prefix)), Role.ADMIN)
        if claims.role is not needed:
            raise Forbidden(
                f"{request.path} needs a token of role {needed.value}; this token has role {claims.role.value}"
            )
        request[CLAIMS] = claims
        mark_trusted(request)
        return await handler(request)

    return check


def token_allocation(request: web.Request, uid: str) -> str:
    """Return the uid of the token's allocation. Raises Forbidden if the request's `uid` differs from it."""
    own = request[CLAIMS].subject
    if own != uid:
        raise Forbidden("this token belongs to another allocation")
    return own
