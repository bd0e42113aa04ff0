"""Clients of the server's API: for people and trainers, for node agents, for engines.

Write `from rollyard.client import Client`, or `AsyncClient` inside an event loop. The modules of these two classes are
imported on first use, because node agents and engines import this package but use neither class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollyard.client.async_client import AsyncClient
    from rollyard.client.sync_client import Client

__all__ = ["AsyncClient", "Client"]


_MODULES = {"AsyncClient": "async_client", "Client": "sync_client"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
