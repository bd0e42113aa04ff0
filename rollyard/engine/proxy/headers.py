"""Which headers of an HTTP message a proxy passes on (RFC 9110, 7.6.1)."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""About this connection, so not for the next one."""
OWN = frozenset(["content-length", "host", "authorization", "expect"])
"""Answered or set anew here; the door's token is no business of the engine's."""


def end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers that go on, without those that `SandboxConnection` names."""
    named = {name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",")}
    kept = ((k, v) for k, v in headers.items() if k.lower() not in HOP_BY_HOP | OWN | named)
    return CIMultiDict(kept)
