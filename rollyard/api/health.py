"""`/livez`, `/readyz` and `/healthz`, in the form of the API server of Kubernetes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES
from rollyard.core.errors import ApiError

Check = Callable[[web.Request], Awaitable[None]]


async def _ping(request: web.Request) -> None:
    """The server answers."""


async def _store(request: web.Request) -> None:
    """The data folder belongs to this server, and can be read. Raises Superseded, Unavailable."""
    await request.app[SERVICES].store.confirm()


_CHECKS: dict[str, dict[str, Check]] = {
    "livez": {"ping": _ping},
    "readyz": {"ping": _ping, "store": _store},
    "healthz": {"ping": _ping, "store": _store},
}


def routes() -> list[web.RouteDef]:
    return [web.get(f"/{{name:{'|'.join(_CHECKS)}}}{check}", _answer) for check in ("", "/{check}")]


@accepts("verbose", "exclude", "timeout")
async def _answer(request: web.Request) -> web.Response:
    """Return `ok`, with `verbose` a line for each check; or the failed checks with status 500."""
    name, only = request.match_info["name"], request.match_info.get("check")
    checks, skipped = _CHECKS[name], set(request.query.getall("exclude", []))
    if only is not None and only not in checks:
        raise web.HTTPNotFound
    lines, healthy = [], True
    for check in [only] if only else checks:
        if check in skipped:
            lines.append(f"[+]{check} excluded: ok")
            continue
        try:
            await checks[check](request)
            lines.append(f"[+]{check} ok")
        except ApiError as error:
            lines.append(f"[-]{check} failed: {error}")
            healthy = False
    lines.append(f"{name} check {'passed' if healthy else 'failed'}")
    full = "verbose" in request.query or not healthy
    return web.Response(text="\n".join(lines) + "\n" if full else "ok", status=200 if healthy else 500)
