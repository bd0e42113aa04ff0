"""Clients of the server's API: for people and trainers, for node agents, for engines.

Write `from rollyard.client import Client`, or `AsyncClient` inside an event loop. The modules of these two classes are
imported on first use, because node agents and engines import this package but use neither class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollyard.client.async_client import AsyncClient
    from rollyard.client.sync_client import Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    match name:
        case "AsyncClient":
            from rollyard.client.async_client import AsyncClient

            return AsyncClient
        case "Client":
            from rollyard.client.sync_client import Client

            return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
