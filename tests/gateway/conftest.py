"""A gateway on a port of this machine, in front of the embedded engine or of one with scripted answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollyard.gateway.app import build
from rollyard.gateway.requests.call_errors import no_session
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_client import TokenClient
from simulation.endpoint_sampler import EndpointSampler
from simulation.serving import serve_app
from simulation.upstream import Upstream
from tests.support import make


@dataclass
class Gateway:
    """A running gateway; a session is created when it is first named."""

    template: ChatTemplate
    policy: EndpointSampler
    config: SessionConfig
    url: str = ""
    sessions: dict[str, GatewaySession] = field(default_factory=dict)

    async def find(self, request: web.Request, named: str | None) -> GatewaySession:
        if named is None:
            raise no_session("name a session")
        if named not in self.sessions:
            self.sessions[named] = GatewaySession(named, self.template, self.policy, self.config)
        return self.sessions[named]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        async with serve_app(build(self.find), handler_cancellation=True, auto_decompress=False) as self.url:
            try:
                yield self
            finally:
                for session in self.sessions.values():
                    session.close()


@pytest.fixture(scope="session")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)


@pytest.fixture(scope="session")
def engine(start_engine: Any) -> Any:
    return start_engine()


@pytest.fixture
async def tiny(engine: Any, template: ChatTemplate) -> AsyncIterator[Gateway]:
    """Run a gateway in front of the tiny policy."""
    connector = aiohttp.UnixConnector(str(engine.socket), limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        policy = EndpointSampler(TokenClient(http), make.endpoint(url="http://engine"), template.stop_ids)
        config = SessionConfig("policy", Sampling(max_tokens=256), fixed=False)
        async with Gateway(template, policy, config).serving() as gateway:
            yield gateway


@pytest.fixture
def scripted(template: ChatTemplate) -> Any:
    """scripted(texts): a gateway whose model answers these texts, one for each call; (gateway, the model server)."""

    @asynccontextmanager
    async def start(
        texts: Sequence[str], config: SessionConfig | None = None, **pace: Any
    ) -> AsyncIterator[tuple[Gateway, Upstream]]:
        def script(number: int, prompt: Sequence[int]) -> list[int]:
            return [*template.encode(texts[number % len(texts)]), template.stop_ids[0]]

        connector = aiohttp.TCPConnector(limit=0)
        async with Upstream(script, **pace).serving() as upstream, aiohttp.ClientSession(connector=connector) as http:
            policy = EndpointSampler(TokenClient(http), make.endpoint(url=upstream.url), template.stop_ids)
            made = Gateway(template, policy, config or SessionConfig("policy", Sampling(), fixed=False))
            async with made.serving() as gateway:
                yield gateway, upstream

    return start
