"""The API and the controllers over one store, with engines that use the real wire messages but hold no model.

An engine here carries out a `WeightsTarget` as a real one does, as far as the server can see: phases, versions,
checksums.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from rollyard.api.app import build
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Condition, ObjectKey, Reason, get_condition
from rollyard.kinds.event import Event
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.trust.bearer_tokens import Role
from rollyard.trust.csr import new_key_and_csr
from rollyard.wire.base import Identity
from rollyard.wire.engine import (
    EngineHeartbeat,
    EngineHello,
    EngineOrders,
    EngineWelcome,
    WeightsPhase,
    WeightsReport,
    WeightsTarget,
)
from simulation.serving import serve_app
from tests.support.reconciler_site import WAIT_SECONDS, Site
from tests.support.until import until

MODEL = "/models/policy"
BEAT_SECONDS = 0.03
BASE = "/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools"


@dataclass
class Disk:
    """The folders that engines read."""

    folders: dict[str, str] = field(default_factory=lambda: {MODEL: "aaaaaaaaaaaa"})
    """Folder -> checksum."""


class SimulatedEngine:
    """The process in one allocation; `crash` and then `run` simulate a restart in the same job."""

    def __init__(self, yard: WeightsYard, allocation: Allocation, disk: Disk) -> None:
        self._yard, self._allocation, self.disk = yard, allocation, disk
        status = allocation.status
        self.identity = Identity(
            allocation=allocation.metadata.name,
            namespace="default",
            uid=allocation.metadata.uid,
            job_id=status.job_id or "",
            instance="i",
            node=status.node or "n",
        )
        self.id = f"default/{self.identity.allocation}"
        self.url = f"https://127.0.0.1:1{allocation.spec.index:04d}"
        self.version = self.checksum = self.error = ""
        self.phase: WeightsPhase = ""
        self.order: WeightsTarget | None = None
        self.orders: list[str] = []
        """Ordered versions, in order of arrival."""
        self.hold = asyncio.Event()
        """An order is carried out once this is set."""
        self.hold.set()
        self.disk_fails = False
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def crash(self) -> None:
        for task in (self._task, self._work):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.version = self.checksum = self.phase = self.error = ""
        self.order = self._work = None

    async def _run(self) -> None:
        fresh = True
        while True:
            try:
                if fresh:
                    self._take((await self._register(fresh)).weights)
                    fresh = False
                beat = EngineHeartbeat(
                    identity=self.identity,
                    url=self.url,
                    ready=bool(self.version),
                    reason=None if self.version else Reason("Loading"),
                    weights=WeightsReport(
                        version=self.version, checksum=self.checksum, phase=self.phase, error=self.error
                    ),
                )
                answer = EngineOrders.model_validate(await self._post("heartbeat", beat.model_dump()))
                if not answer.known:
                    await self._register(False)
                elif answer.weights is not None and answer.weights != self.order:
                    self._take(answer.weights)
            except (aiohttp.ClientError, OSError):
                pass  # the server is away and will be back
            await asyncio.sleep(BEAT_SECONDS)

    async def _register(self, fresh: bool) -> EngineWelcome:
        csr = new_key_and_csr(self.identity.allocation)[1].decode() if fresh else None
        hello = EngineHello(identity=self.identity, url=self.url, csr=csr)
        return EngineWelcome.model_validate(await self._post("register", hello.model_dump()))

    async def _post(self, word: str, body: dict[str, Any]) -> Any:
        token = self._yard.signer.issue(Role.ENGINE, self.identity.uid)
        headers = {"Authorization": f"Bearer {token}"}
        async with self._yard.http.post(f"{self._yard.url}/v1/engine/{word}", json=body, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    def _take(self, order: WeightsTarget | None) -> None:
        if self._work is not None:
            self._work.cancel()
        self.order = order
        if order is not None:
            self.orders.append(order.version)
        if order is not None and order.version == self.version and order.checksum in (None, self.checksum):
            self.phase = self.error = ""
            return
        self.phase = "" if order is None else "Draining"
        self._work = asyncio.create_task(self._load(order))

    async def _load(self, order: WeightsTarget | None) -> None:
        await self.hold.wait()
        folder = MODEL if order is None else order.path or order.adapter or ""
        found = None if self.disk_fails else self.disk.folders.get(folder)
        if found is None or (order is not None and order.checksum not in (None, found)):
            self.phase = "Failed" if order is not None else ""
            self.error = f"{folder} cannot be read" if found is None else f"it holds {found}"
            return
        self.version, self.checksum = (found if order is None else order.version), found
        self.phase = self.error = ""


class WeightsYard:
    """One pool `policy`, its engines, and the API for them and a trainer."""

    def __init__(self, site: Site, http: aiohttp.ClientSession) -> None:
        self.site, self.http = site, http
        self.disk = Disk()
        self.engines: dict[str, SimulatedEngine] = {}
        self.signer = site.parts.signer
        self.url = ""
        self._server = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Start the parts that a server starts; `site` has a new process."""
        app = build(self.site.parts.services())
        self.url = await self._server.enter_async_context(serve_app(app, shutdown_timeout=60))

    async def close(self) -> None:
        for engine in self.engines.values():
            await engine.crash()
        await self._server.aclose()

    async def restart(self) -> None:
        """Restart the server; engines stay alive."""
        await self._server.aclose()
        await self.site.restart()
        await self.open()

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.signer.issue(Role.ADMIN, 'trainer')}"}
        async with self.http.request(method, self.url + path, headers=headers, **more) as answer:
            return answer.status, await answer.json()

    async def update(self, version: str, **more: Any) -> tuple[int, Any]:
        body = {"version": version, "path": f"/weights/{version}", "mode": "Pause"} | more
        return await self.call("POST", f"{BASE}/policy/weights", json=body)

    def write(self, version: str, checksum: str | None = None) -> None:
        """Write a folder, as the trainer does."""
        self.disk.folders[f"/weights/{version}"] = checksum or f"{len(self.disk.folders):012x}"

    async def pool_of(self, replicas: int) -> None:
        """Declare and start the pool; return when it is ready with the weights of the spec."""
        spec = {
            "model": {"path": MODEL},
            "engine": {"embedded": {}},
            "replicas": replicas,
            "allocation": {"setup": "exec sleep 600"},
        }
        await self.site.store.objects.create(
            InferencePool.model_validate({"metadata": {"name": "policy"}, "spec": spec})
        )
        for allocation in await self.site.running(replicas):
            self.engine(allocation).start()
        await self.serve("aaaaaaaaaaaa", replicas)

    def engine(self, allocation: Allocation) -> SimulatedEngine:
        made = SimulatedEngine(self, allocation, self.disk)
        self.engines[made.id] = made
        return made

    async def pool(self) -> InferencePool:
        found = await self.site.store.objects.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
        assert isinstance(found, InferencePool)
        return found

    async def condition(self, type: str) -> Condition | None:
        return get_condition((await self.pool()).status.conditions, type)

    def heap(self) -> dict[str, str]:
        """Endpoint id -> version, for endpoints that accept new rollouts."""
        states = self.site.endpoints.of_pool(PoolKey("default", "policy"))
        return {s.endpoint.id: s.endpoint.weights_version for s in states if s.ready and not s.drain}

    async def event(self, reason: str) -> Event:
        """Return the only event of this reason, once it is written, which happens after the status."""
        await self.until(lambda: self.site.events(reason), reason)
        (found,) = await self.site.events(reason)
        return found

    async def until(self, holds: Any, what: str = "") -> Any:
        async def seen() -> str:
            status = (await self.pool()).status
            return f"{what}: {status.weights} {status.endpoints} {self.heap()}"

        return await until(holds, WAIT_SECONDS, seen=seen)

    async def serve(self, version: str, count: int) -> None:
        """Wait until so many endpoints, and no others, are in the heap with this version, and the pool reports it as
        current."""

        async def holds() -> bool:
            current = (await self.pool()).status.weights.current
            fact = await self.condition("WeightsCurrent")
            return (
                list(self.heap().values()) == [version] * count
                and current is not None
                and current.version == version
                and fact is not None
                and fact.status == "True"
            )

        await self.until(holds, f"{count} serve {version}")
