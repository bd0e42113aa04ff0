"""The headers of an HTTP message that a proxy forwards (RFC 9110, 7.6.1)."""

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
"""Headers that apply to one connection only."""
OWN = frozenset(["content-length", "host", "authorization", "expect"])
"""Headers that the proxy handles or sets itself. The proxy's token must not reach the engine."""
HEADERS_SET_BY_AIOHTTP = ("Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp would add by itself. The engine must get them only if the client sent them."""


def end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the headers to forward: all except `HOP_BY_HOP`, `OWN` and those that `Connection` names."""
    named = {name.strip().lower() for value in headers.getall("Connection", []) for name in value.split(",")}
    kept = ((k, v) for k, v in headers.items() if k.lower() not in HOP_BY_HOP | OWN | named)
    return CIMultiDict(kept)
