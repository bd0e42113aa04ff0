"""Pages of long lists. All pages of a list show the objects as they were at its first page.

The lists are kept in memory for some minutes. Later, and after a restart, the next page is refused with 410: then
clients list again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from rollyard.core.clock import Clock
from rollyard.core.errors import BadRequest, Expired
from rollyard.kinds.base import KindObject

KEPT_LISTS = 64
KEPT_SECONDS = 300.0


@dataclass(frozen=True)
class Page:
    items: Sequence[KindObject]
    version: str
    token: str = ""
    """The parameter `continue` of the next page; empty on the last page."""
    remaining: int = 0


@dataclass(frozen=True)
class _KeptList:
    items: Sequence[KindObject]
    version: str
    query: str
    """Path and selectors of the request. A token is only valid for the same query."""
    kept_until: float


class ListPages:
    def __init__(self) -> None:
        self._lists: dict[str, _KeptList] = {}

    def first(self, items: Sequence[KindObject], version: str, query: str, limit: int, clock: Clock) -> Page:
        """Return the first page. `limit` 0: no limit."""
        if not limit or len(items) <= limit:
            return Page(items, version)
        id = secrets.token_hex(8)
        self._lists[id] = _KeptList(items, version, query, clock.time() + KEPT_SECONDS)
        for old in list(self._lists)[:-KEPT_LISTS]:
            del self._lists[old]
        return self._page(id, 0, limit)

    def next(self, token: str, query: str, limit: int, clock: Clock) -> Page:
        """Return the page that a token names. Raises BadRequest for a token of another list, and Expired."""
        id, _, start = token.partition(".")
        kept = self._lists.get(id)
        if not start.isdecimal() or len(start) > 9 or (kept is not None and kept.query != query):
            raise BadRequest("continue key is not valid: send the one of the last page, with the same selectors")
        if kept is None or kept.kept_until < clock.time():
            raise Expired("this list is no longer kept, so its next page cannot be had; list again without `continue`")
        return self._page(id, int(start), limit or len(kept.items))

    def _page(self, id: str, start: int, limit: int) -> Page:
        kept, end = self._lists[id], start + limit
        remaining = max(0, len(kept.items) - end)
        return Page(kept.items[start:end], kept.version, f"{id}.{end}" if remaining else "", remaining)


PAGES: web.AppKey[ListPages] = web.AppKey("list_pages", ListPages)
