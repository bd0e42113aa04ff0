"""Query parameters. Each route declares its parameters; unknown parameters and impossible values are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from aiohttp import web

from rollyard.api.auth import GATEWAY
from rollyard.api.error_status import Handler
from rollyard.core.errors import BadRequest
from rollyard.kinds.schema.validation import did_you_mean

H = TypeVar("H", bound=Callable[..., object])
MAX_INTEGER = 2**63 - 1
"""Largest integer that the database and file offsets can hold."""
ANY = "*"
"""Name that a route declares if it accepts every parameter."""
_ACCEPTED = "query_parameters"
_TRUE, _FALSE = ("1", "t", "T", "true", "True", "TRUE"), ("0", "f", "F", "false", "False", "FALSE")


def accepts(*names: str) -> Callable[[H], H]:
    """Return a decorator for handlers. It declares the query parameters of the handler's route."""

    def named(handler: H) -> H:
        setattr(handler, _ACCEPTED, names)
        return handler

    return named


def parameters(handler: object) -> tuple[str, ...]:
    """Return the query parameters that a handler's route accepts."""
    names: tuple[str, ...] = getattr(handler, _ACCEPTED, ())
    return names


@web.middleware
async def known_parameters(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that refuses unknown parameters with 400.

    The gateway's routes are not checked, because they take the parameters of other providers' APIs.
    """
    if request.query and request.match_info.http_exception is None and not request.path.startswith(GATEWAY):
        _check(request)
    return await handler(request)


def _check(request: web.Request) -> None:
    own = parameters(request.match_info.handler)
    if ANY in own:
        return
    kubernetes = request.path.startswith("/api")
    for name in request.query:
        if name not in own and not (kubernetes and name in KUBERNETES):
            there = f"it accepts {', '.join(own)}" if own else "it accepts none"
            meant = did_you_mean(name, own)
            raise BadRequest(
                f"there is no query parameter {name[:60]!r} at {request.method} {request.path}{meant}; {there}"
            )
        if not kubernetes and len(request.query.getall(name)) > 1:
            raise BadRequest(f"the query parameter {name} was given more than once")
    if kubernetes:
        for name, check in KUBERNETES.items():
            if (value := request.query.get(name)) is not None:
                check(name, value)


def namespace_of(request: web.Request) -> str:
    """Return the namespace that a request names, or `default`."""
    return request.query.get("namespace", "default")


def integer(request: web.Request, name: str, default: int, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Return an integer parameter. Raises BadRequest."""
    return _integer(name, request.query.get(name, str(default)), least, most)


def cursor(text: str, name: str) -> int:
    """Return a position in a stream. Raises BadRequest."""
    return _integer(name, text, 0, MAX_INTEGER)


def _integer(name: str, text: str, least: int = 0, most: int = MAX_INTEGER) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise BadRequest(f"{name} must be a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def number(request: web.Request, name: str) -> float | None:
    """Return a finite number; None if the parameter is absent. Raises BadRequest."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name} must be a number, not {text[:40]!r}")
    return value


def seconds(request: web.Request, name: str, default: float) -> float:
    """Return a number of seconds that is at least 0. Raises BadRequest."""
    value = number(request, name)
    if value is not None and value < 0:
        raise BadRequest(f"{name} must be a number of seconds, at least 0, not {value:g}")
    return default if value is None else value


def flag(request: web.Request, name: str) -> bool:
    """Return a boolean parameter. Raises BadRequest."""
    text = request.query.get(name, "false")
    _boolean(name, text)
    return text in _TRUE


def _boolean(name: str, text: str) -> None:
    if text not in (*_TRUE, *_FALSE):
        raise BadRequest(f"{name} must be 1 or 0, true or false, not {text[:40]!r}")


def _any_text(name: str, text: str) -> None:
    pass


def _version(name: str, text: str) -> None:
    if not re.fullmatch(r"[0-9]{0,19}", text):
        raise BadRequest(f"{name} {text[:40]!r} is not a valid one; send one that a list or an object had")


def _one_of(*words: str) -> Callable[[str, str], None]:
    def check(name: str, text: str) -> None:
        if text not in words:
            raise BadRequest(f"{name} must be {' or '.join(words)}, not {text[:40]!r}")

    return check


KUBERNETES: Mapping[str, Callable[[str, str], object]] = {
    "allowWatchBookmarks": _boolean,
    "continue": _any_text,
    "dryRun": _one_of("All"),
    "fieldManager": _any_text,
    "fieldSelector": _any_text,
    "fieldValidation": _one_of("Ignore", "Warn", "Strict", ""),
    "force": _boolean,
    "gracePeriodSeconds": _integer,
    "includeObject": _one_of("None", "Metadata", "Object"),
    "labelSelector": _any_text,
    "limit": _integer,
    "orphanDependents": _boolean,
    "pretty": _any_text,
    "propagationPolicy": _one_of("Orphan", "Background", "Foreground"),
    "resourceVersion": _version,
    "resourceVersionMatch": _one_of("Exact", "NotOlderThan"),
    "sendInitialEvents": _boolean,
    "timeout": _any_text,
    "timeoutSeconds": _integer,
    "watch": _boolean,
}
"""Parameters that Kubernetes clients send on any path below /apis and /api, each with a function that checks its value."""
