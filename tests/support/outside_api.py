"""The API of a server without the server, for tests of sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
from aiohttp import web

from rollyard.gateway.session.session import GatewaySession
from rollyard.kinds.pool import PoolKey
from rollyard.server_process.parts_and_wakeups import Parts
from rollyard.trajectory.session import SessionRecord
from tests.support import make

QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "Solve it."},
    {"role": "user", "content": "What is 3 * 4?"},
]
POOL = PoolKey("default", "policy")


@dataclass
class Api:
    """The API of a server, with the parts behind it."""

    url: str
    admin: str
    parts: Parts
    model: Path
    app: web.Application
    http: aiohttp.ClientSession = field(init=False)

    def __post_init__(self) -> None:
        parts = self.parts
        self.store, self.node_agents, self.rollouts = parts.store, parts.node_agents, parts.rollouts
        self.endpoints, self.sessions, self.index = parts.endpoints, parts.sessions, parts.session_index

    def serve(self, id: str, url: str, version: str = "v1") -> None:
        endpoint = make.endpoint(id, url, version=version, tokenizer=str(self.model))
        self.endpoints.add_external(POOL, endpoint, 1.0)
        self.endpoints.probed(id, None)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, json=body) as answer:
            return answer.status, await answer.json() if answer.content_type == "application/json" else None

    async def open(self, **request: Any) -> dict[str, Any]:
        status, opened = await self.ask("POST", "/v1/sessions", {"pool": "policy", **request})
        assert status == 201, opened
        return dict(opened)

    def gateway_session(self, id: str) -> GatewaySession:
        """A session that is in use."""
        live = next(found.live for found in self.sessions.all("default") if found.id == id)
        assert live is not None
        return live.session

    async def record(self, id: str, *, close: bool = False) -> SessionRecord:
        asked = ("POST", f"/v1/sessions/{id}/close") if close else ("GET", f"/v1/sessions/{id}")
        status, record = await self.ask(*asked)
        assert status == 200, record
        return SessionRecord.model_validate(record)


Serve = Callable[..., Any]


def client(opened: dict[str, Any], **more: Any) -> openai.AsyncOpenAI:
    given = {"base_url": opened["base_url"], "api_key": opened["key"], "max_retries": 0, **more}
    return openai.AsyncOpenAI(**given)


async def messages(base: str, key: str, body: Any) -> tuple[int, Any]:
    """Call as Anthropic's client does."""
    headers = {"x-api-key": key}
    async with aiohttp.ClientSession() as http, http.post(f"{base}/v1/messages", json=body, headers=headers) as answer:
        return answer.status, await answer.json()
