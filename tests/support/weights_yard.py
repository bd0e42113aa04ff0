"""An engine with its supervisor, reverse proxy and weights updater, as `rollyard inference-server` assembles them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rollyard.core.aio import running
from rollyard.core.tls_server import stop_tls_server
from rollyard.engine.launch.launch_plan import LaunchPlan, with_weights
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.proxy.reverse_proxy import EngineProxy
from rollyard.engine.weights.embedded_control import EmbeddedControl
from rollyard.engine.weights.engine_control import EngineControl
from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.updater import WeightsUpdater
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.trust.ca import Authority
from rollyard.trust.csr import new_key_and_csr
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.engine import WeightsTarget
from tests.support.live_weights import other_weights
from tests.support.reference_model import reference_model
from tests.support.until import until

TOKEN = "proxy-token"
WAIT_SECONDS = 60.0
PROMPTS = [[40 + i, *range(100, 130 + 7 * i)] for i in range(4)]
Control = Callable[[aiohttp.ClientSession], EngineControl]


@dataclass
class Answer:
    """A client's answer: each token, with the version stated for it."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    said: str = ""

    def add_event(self, event: Mapping[str, Any]) -> None:
        if event.get("object") == "rollyard.weights":
            self.said = event["weights_version"]
        elif event.get("choices"):
            choice = event["choices"][0]
            self.ids += choice["token_ids"]
            self.logprobs += choice["logprobs"]["token_logprobs"]
            self.versions += [self.said] * len(choice["token_ids"])
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    @property
    def boundary(self) -> int:
        """Count the tokens of the first version."""
        return next((i for i, v in enumerate(self.versions) if v != self.versions[0]), len(self.versions))


@dataclass
class Yard:
    weights: WeightsUpdater
    supervisor: Supervisor
    proxy: EngineProxy
    client: aiohttp.ClientSession
    uds: Path
    seconds: float = WAIT_SECONDS
    answers: list[Answer] = field(default_factory=list)
    """Answers of the streams since this was last cleared."""

    async def until(self, done: Callable[[], bool]) -> None:
        await until(done, self.seconds, every=0.005)

    async def order(self, order: WeightsTarget, phase: str = "") -> None:
        """Order weights; return when the order is done or has failed."""
        self.weights.set_target(order)
        await self.until(
            lambda: (
                self.weights.report.phase == phase
                and (phase == "Failed" or self.weights.report.version == order.version)
            )
        )

    def body(self, prompt: Sequence[int], tokens: int, **fields: Any) -> dict[str, Any]:
        body = {"model": "policy", "prompt": list(prompt), "max_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        return body | {"logprobs": 0, "return_token_ids": True} | fields

    async def stream(self, prompt: Sequence[int], tokens: int, after: int | None = None, **fields: Any) -> Answer:
        """Read a stream to its end, or until so many tokens of a second version have arrived."""
        answer = Answer(list(prompt))
        self.answers.append(answer)
        body = self.body(prompt, tokens, stream=True, **fields)
        async with self.client.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        answer.add_event(json.loads(line[6:]))
                if after is not None and len(answer.ids) - answer.boundary >= after:
                    break
        return answer

    async def whole(self, prompt: Sequence[int], tokens: int, **fields: Any) -> tuple[Answer, Mapping[str, str], Any]:
        async with self.client.post("/v1/completions", json=self.body(prompt, tokens, **fields)) as response:
            said = await response.json()
            assert response.status == 200, said
            answer = Answer(list(prompt), said=response.headers.get("X-Rollyard-Weights-Version", ""))
            answer.add_event(said)
            return answer, response.headers, said

    async def under_way(self, count: int, tokens: int) -> None:
        """Wait until so many streams have so many tokens each."""
        await self.until(lambda: sum(len(a.ids) >= tokens for a in self.answers) >= count)


def embedded(model: Path) -> dict[str, Any]:
    """Spec of a pool of embedded engines."""
    return {"model": {"path": str(model)}, "engine": {"embedded": {"maxSequences": 8}}}


@contextlib.asynccontextmanager
async def yard(
    spec: Mapping[str, Any],
    folder: Path,
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
    *,
    order: WeightsTarget | None = None,
    control: Control = EmbeddedControl,
    seconds: float = WAIT_SECONDS,
) -> AsyncIterator[Yard]:
    pool = InferencePoolSpec.model_validate({"replicas": 1, **spec})
    uds = folder / "e"
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    supervisor = Supervisor(LaunchPlan(pool, uds), uds)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connector = aiohttp.TCPConnector(ssl=certified[1], limit=0)
    async with supervisor.session() as http, aiohttp.ClientSession(url, connector=connector, headers=headers) as client:
        proxy = EngineProxy(http, TOKEN)

        def command(source: WeightsSource) -> Any:
            return LaunchPlan(with_weights(pool, str(source.folder)), uds)

        weights = WeightsUpdater(pool.model, order, supervisor, proxy, control(http), command, http)
        runner = await proxy.open(listener, certified[0])
        try:
            async with running(weights.run()) as task:
                made = Yard(weights, supervisor, proxy, client, uds, seconds)
                await made.until(lambda: weights.proven or task.done() or weights.report.phase == "Failed")
                if task.done():
                    task.result()
                yield made
        finally:
            await stop_tls_server(runner)


def recomputed(answer: Answer, before: Path, after: Path, boundary: int | None = None) -> list[float]:
    """Compute the logprobs if `before` made all tokens up to the boundary and `after` continued with its keys and values."""
    at = answer.boundary if boundary is None else boundary
    first = len(answer.prompt) - 1
    fed, split = [*answer.prompt, *answer.ids[:-1]], first + at if at > 0 else 0
    tables, cache = [], None
    for folder, ids in ((before, fed[:split]), (after, fed[split:])):
        if ids:
            table, cache = reference_model(folder).logprobs(ids, cache)
            tables.append(table)
    found: list[float] = np.concatenate(tables)[np.arange(first, len(fed)), answer.ids].tolist()
    return found


def furthest(answer: Answer, computed: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(answer.logprobs, computed, strict=True))


def shown(answers: Sequence[Answer], before: Path, after: Path, by: int) -> float:
    """Return the largest error of the clearest answer if each boundary were `by` tokens from its stated place.

    One token may be as likely under both weights, but not 16 of them in each of several streams.
    """
    return max(furthest(a, recomputed(a, before, after, a.boundary + by)) for a in answers)


def pid_of(uds: Path) -> int:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(uds).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    (pid,) = found
    return pid


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("trust")
    authority = Authority.open(folder)
    key, csr = new_key_and_csr("policy-0")
    (folder / "proxy.pem").write_bytes(key + authority.sign_csr(csr.decode(), ["127.0.0.1"]).encode())
    return server_ssl_context(folder / "proxy.pem"), ssl.create_default_context(cadata=authority.ca_pem)


@pytest.fixture(scope="module")
def other_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(model_dir, tmp_path_factory.mktemp("weights") / "v2")


@pytest.fixture
async def made(model_dir: Path, tmp_path: Path, certified: Any) -> AsyncIterator[Yard]:
    """The embedded engine behind its proxy, with the tiny policy."""
    async with yard(embedded(model_dir), tmp_path, certified) as found:
        yield found
