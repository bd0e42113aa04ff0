"""The node agent. It runs one asyncio task for each lease, keeps one connection to the server, and stops the work on
expired leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

import aiohttp

from rollyard.client.node_connection import NodeConnection
from rollyard.client.server_link import ServerLink
from rollyard.core.aio import Waker
from rollyard.core.errors import Fenced, ImageUnavailable, NoEndpoint
from rollyard.core.lease_time import LEASE_SECONDS
from rollyard.images.settings import CacheSettings
from rollyard.kinds.failure_table import NODE_AGENT_ERROR
from rollyard.kinds.rollout import Stage
from rollyard.kinds.sandbox_template import SandboxImages
from rollyard.kinds.values.quantity import size_bytes
from rollyard.node import attachments
from rollyard.node.image_pulls import ImagePulls, image_fault
from rollyard.node.kept_sandboxes import KeptSandboxes
from rollyard.node.lease_run import LeaseRun, NodeContext
from rollyard.node.lease_sampler import ROLE, LeaseSampler
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.stage_workers import StagePools
from rollyard.sandbox.cgroups import NoDelegation, SandboxCgroups
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.free_memory import reserve, whole_memory
from rollyard.sandbox.sandbox import SandboxFactory
from rollyard.sandbox.warm_sandboxes import WarmSandboxes
from rollyard.tasks.installed_handlers import load_handlers
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.template_cache import TemplateCache
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.node import (
    IMAGE_REASON,
    UNREADABLE_LEASE_REASON,
    Attach,
    Cancel,
    CapacityRequest,
    Drain,
    Grant,
    HandBack,
    Heartbeat,
    Hello,
    KeptSandboxList,
    Lease,
    LeaseKey,
    LeaseRef,
    RechooseEndpoint,
    Renewed,
    Resize,
    SandboxCounts,
    StageImages,
    ToNode,
    ToolProofs,
    UnreadableLease,
    Welcome,
)

log = logging.getLogger(__name__)

HAND_BACK_SECONDS = 5.0
KEPT_SHARE = 4
"""One in this number of the allocation's sandboxes may be the kept sandbox of a failed rollout."""
MAX_ERROR_CHARS = 2000


class NodeAgent:
    """Runs all leases of one allocation."""

    def __init__(self, link: ServerLink, http: aiohttp.ClientSession, models: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http
        self._tokens = TokenClient(models)
        self._identity = link.identity()
        self._connection = NodeConnection(link, http, self._hello, self._on_message)
        self._uploads = ResultUploads(link, http)
        self._attachments = attachments.Attachments(link, http)
        self._handlers = load_handlers()
        for kind, why in self._handlers.failed.items():
            log.error("task kind %s is not available here: its handler cannot be loaded: %s", kind, why)
        log.info("task kinds: %s", ", ".join(sorted(self._handlers.loaded)))
        self._runs: dict[LeaseKey, tuple[LeaseRun, asyncio.Task[None]]] = {}
        self._policies: dict[LeaseKey, LeaseSampler] = {}
        self._templates = TemplateCache()
        self._templates.proven.connect(lambda proof: self._proofs_changed())
        self._proofs_reported = True
        """True if the server knows all proofs of tool calls."""
        self._node: NodeContext | None = None
        self._sandboxes: SandboxFactory | None = None
        self._images: ImagePulls | None = None
        self._kept: KeptSandboxes | None = None
        self._kept_reported = True
        """True if the server knows which sandboxes are kept."""
        self._capacity = 0
        """Number of sandboxes that fit into the allocation. The server's first `Welcome` sets it."""
        self._memory_shortage = self._image_shortage = ""
        """Sentence for the server; empty if the memory allows as many sandboxes as the cores."""
        self._room = 0
        """Number of sandboxes that fit into the memory that this process and its children may use."""
        self._lease_seconds = LEASE_SECONDS
        self._renewed_at = asyncio.get_running_loop().time()
        self._grants = 0
        """Number of messages `Grant` received since the last `Welcome`."""
        self._stage_changed = Waker()
        self._welcomed = asyncio.Event()
        self._drain = False
        self._drained = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a drain is done, then hand back all leases.

        Raises Fenced and Incompatible if the server refuses this process, and SandboxStartFailed if no sandbox runtime
        works here. In these cases no lease is handed back.
        """
        parts = [
            self._connection.run(),
            self._beat(),
            self._watch_clock(),
            self._watch_images(),
            self._drained.wait(),
            stop.wait(),
        ]
        tasks = [asyncio.create_task(_as_dict(part)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._hand_back("NodeAgentStopped")
        finally:
            works = [task for _, task in self._runs.values()]
            for task in (*tasks, *works):
                task.cancel()
            await asyncio.gather(*tasks, *works, return_exceptions=True)
            await self._attachments.close()
            if self._kept is not None:
                await self._kept.close()
            await self._handlers.close()
            if self._images is not None:
                await self._images.close()
            if self._node is not None:
                await self._node.sandboxes.close()
            if self._sandboxes is not None:
                await self._sandboxes.close()

    # messages from the server

    async def _on_message(self, message: ToNode) -> None:
        match message:
            case Welcome():
                await self._welcome(message)
            case Grant(leases=leases, unread=unread):
                self._grants += 1
                for lease in leases:
                    self._accept(lease)
                await self._refuse_unreadable(unread)
            case Renewed(sent_at=sent_at, lost=lost):
                self._renewed_at = max(self._renewed_at, sent_at)
                self._stop_leases(lost, "the server gave it to another node agent")
            case Cancel(lease=ref):
                self._stop_leases([ref], "cancelled")
            case RechooseEndpoint(lease=ref, role=role, now=now):
                policy = self._policies.get(ref.key)
                if policy is not None and role == ROLE:
                    policy.rechoose(now=now)
            case Attach(lease=ref):
                found = self._runs.get(ref.key)
                kept = self._kept.get(ref.key) if self._kept is not None else None
                self._attachments.begin(message, found[0] if found is not None else kept)
            case Drain():
                self._drain = True
                if self._node is not None:
                    self._node.sandboxes.drain()
                    await self._node.kept.close()
                self._heartbeat_soon()
            case StageImages(images=images):
                if self._images is not None:
                    self._images.stage(images)
            case Resize(widths=widths, places=places):
                if self._node is not None:
                    known = {stage: widths[stage] for stage in Stage if stage in widths}
                    places = min(places, self._room)
                    self._node.pools.request(known, places)
                    self._node.sandboxes.places = places
                    self._heartbeat_soon()

    async def _welcome(self, welcome: Welcome) -> None:
        self._grants = 0
        self._kept_reported = self._count_kept() == 0
        self._proofs_reported = not self._templates.proofs()
        self._lease_seconds = welcome.lease_seconds
        self._renewed_at = asyncio.get_running_loop().time()
        self._stop_leases(welcome.lost, "the server gave it to another node agent")
        if self._node is None:
            runtime = await asyncio.to_thread(find_runtime, welcome.sandbox.runtime)
            if runtime.shortage:
                log.warning("this node %s", runtime.shortage)
            self._image_shortage = runtime.shortage
            cgroups = await asyncio.to_thread(_cgroups)
            self._sandboxes = SandboxFactory(
                runtime, image_settings=_cache_settings(welcome.sandbox.images), cgroups=cgroups
            )
            self._images = ImagePulls(self._sandboxes.images, self._connection.send, welcome.sandbox.default_image)
            self._room = _room(size_bytes(welcome.sandbox.memory), welcome.places)
            self._memory_shortage = _memory_shortage(size_bytes(welcome.sandbox.memory), self._room, welcome.places)
            self._capacity = min(welcome.places, self._room)
            widths = {stage: getattr(welcome.stages, stage.value.lower()).workers.min for stage in Stage}
            self._kept = KeptSandboxes(max(1, welcome.places // KEPT_SHARE), self._kept_changed)
            self._node = NodeContext(
                kept=self._kept,
                pools=StagePools(widths),
                sandboxes=WarmSandboxes(self._sandboxes, welcome.sandbox.warm.max, self._capacity),
                images=self._images,
                handlers=self._handlers,
                uploads=self._uploads,
                templates=self._templates,
                policy=self._policy,
                sandbox=welcome.sandbox,
                stages=welcome.stages,
                node=self._identity.node,
            )
            if self._drain:
                self._node.sandboxes.drain()
        self._welcomed.set()
        self._heartbeat_soon()

    # leases

    def _accept(self, lease: Lease) -> None:
        key = lease.key
        if key in self._runs or self._node is None:
            return
        work = self._lease_run(self._node, lease)
        self._runs[key] = (work, asyncio.create_task(self._run_lease(key, work)))
        self._heartbeat_soon()

    def _lease_run(self, node: NodeContext, lease: Lease) -> LeaseRun:
        return LeaseRun(node, lease, self._heartbeat_soon)

    async def _refuse_unreadable(self, unread: list[UnreadableLease]) -> None:
        for one in unread:
            log.warning("a lease has fields that this node agent does not know: %s", one.why)
            # A lease whose id cannot be read cannot be handed back; it expires on the server.
            if one.lease is not None:
                await self._connection.send(HandBack(lease=one.lease, reason=UNREADABLE_LEASE_REASON))
        self._heartbeat_soon()  # leases for the freed capacity are requested after the next heartbeat

    async def _run_lease(self, key: LeaseKey, work: LeaseRun) -> None:
        try:
            await work.run()
        except Fenced as error:
            log.warning("%s", error)
        except NoEndpoint as error:
            await self._connection.send(HandBack(lease=work.ref, reason=str(error)))
        except ImageUnavailable as error:
            fault = image_fault(error, default=work.default_image)
            await self._connection.send(HandBack(lease=work.ref, reason=IMAGE_REASON, image=fault))
        except Exception as error:
            task = asyncio.current_task()
            # the rollout was stopped on purpose: an error that the stop causes is not reported
            if task is not None and task.cancelling():
                log.info("rollout %s was stopped: %r", key.id, error)
                return
            # The outermost boundary of one rollout: a bug of ours must not end other rollouts, and the lease must be
            # handed back.
            log.exception("rollout %s caused an error in the code of the node agent", key.id)
            message = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS].encode(errors="backslashreplace").decode()
            await self._connection.send(HandBack(lease=work.ref, reason=NODE_AGENT_ERROR.reason, message=message))
        finally:
            self._runs.pop(key, None)
            self._policies.pop(key, None)
            self._heartbeat_soon()

    def _stop_leases(self, refs: list[LeaseRef], why: str) -> None:
        for ref in refs:
            found = self._runs.pop(ref.key, None)
            if found is not None:
                log.info("stopping rollout %s: %s", ref.id, why)
                found[1].cancel()

    async def _hand_back(self, reason: str) -> None:
        """Hand back every lease while the connection is still open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_SECONDS):
                for work, task in list(self._runs.values()):
                    task.cancel()
                    await self._connection.send(HandBack(lease=work.ref, reason=reason))

    # messages to the server

    def _hello(self) -> Hello:
        held = [work.ref for work, _ in self._runs.values()]
        widths = _widths(self._node.pools) if self._node else {}
        return Hello(
            identity=self._identity,
            held=held,
            widths=widths,
            places=self._capacity,
            kinds=sorted(self._handlers.loaded),
            failed_kinds=dict(self._handlers.failed),
            ready_images=self._images.ready() if self._images is not None else [],
            attachments=attachments.KINDS,
        )

    def _heartbeat_soon(self) -> None:
        self._stage_changed.wake()

    async def _beat(self) -> None:
        """Send a heartbeat at regular times, and soon after a change, such as a new lease, a new stage or new widths.
        After every heartbeat, request leases for the free capacity."""
        loop = asyncio.get_running_loop()
        while True:
            await self._stage_changed.pause(self._lease_seconds / 3)
            if self._node is None:
                continue
            pools = self._node.pools
            pools.apply_requested(self._count_before_eval() + self._count_kept())
            held = [work.ref for work, _ in self._runs.values()]
            await self._connection.send(
                Heartbeat(
                    held=held,
                    widths=_widths(pools),
                    sandboxes=SandboxCounts(**asdict(self._node.sandboxes.counts)),
                    sent_at=loop.time(),
                    memory_shortage=self._memory_shortage,
                    image_shortage=self._image_shortage,
                    preparing=self._node.sandboxes.preparing,
                )
            )
            await self._connection.send(self._request_capacity(pools))
            if self._kept is not None and not self._kept_reported:
                self._kept_reported = await self._connection.send(KeptSandboxList(kept=self._kept.reports()))
            if not self._proofs_reported:
                self._proofs_reported = await self._connection.send(ToolProofs(proofs=self._templates.proofs()))
            if self._drain and not self._runs:
                self._drained.set()
            await asyncio.sleep(0.02)  # changes that come close together are sent in one heartbeat

    def _request_capacity(self, pools: StagePools) -> CapacityRequest:
        if self._drain:
            return CapacityRequest()
        early = self._count_before_eval()
        late = len(self._runs) - early
        evals = max(0, pools[Stage.EVAL].limit - late)
        return CapacityRequest(
            init=pools.free_capacity(early + self._count_kept()),
            eval=evals,
            kinds=sorted(self._handlers.loaded),
            grants=self._grants,
        )

    def _count_before_eval(self) -> int:
        """Count the rollouts before EVAL. Each of these rollouts has a sandbox, or will need one soon."""
        return sum(work.stage is not Stage.EVAL for work, _ in self._runs.values())

    def _count_kept(self) -> int:
        return len(self._kept) if self._kept is not None else 0

    def _proofs_changed(self) -> None:
        self._proofs_reported = False
        self._heartbeat_soon()

    def _kept_changed(self) -> None:
        self._kept_reported = False
        self._heartbeat_soon()

    async def _watch_clock(self) -> None:
        """Stop the work on all leases if by this process's own clock the leases have expired. At about the same time, the
        server gives the rollouts to other node agents."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._renewed_at + self._lease_seconds - loop.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            if self._runs:
                log.warning("leases not renewed for %g s: stopping %d rollouts", self._lease_seconds, len(self._runs))
                self._stop_leases([work.ref for work, _ in self._runs.values()], "its lease expired")
            await asyncio.sleep(1.0)

    async def _watch_images(self) -> None:
        await self._welcomed.wait()
        assert self._images is not None
        await self._images.run()

    # shared parts

    def _policy(self, lease: Lease, template: ChatTemplate) -> LeaseSampler:
        endpoint = lease.endpoints[ROLE]
        ref = LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence)
        policy = LeaseSampler(
            self._link, self._http, self._tokens, ref, endpoint, template.stop_ids, lease.budgets.context_tokens
        )
        self._policies[ref.key] = policy
        return policy


def _cgroups() -> SandboxCgroups | None:
    """Return the cgroup for sandboxes; None if cgroups cannot limit them here."""
    try:
        cgroups = SandboxCgroups.enter()
    except NoDelegation as why:
        log.info("the memory guard limits the memory of sandboxes, and no cgroup: %s", why)
        return None
    log.info("each sandbox has a cgroup with limits in %s", cgroups.folder)
    return cgroups


def _cache_settings(images: SandboxImages) -> CacheSettings:
    return CacheSettings(
        cache_bytes=size_bytes(images.cache_size),
        shared_folder=images.shared_folder,
        credentials_file=images.credentials_file,
        insecure_registries=images.insecure_registries,
    )


def _room(sandbox_bytes: int, places: int) -> int:
    """Return how many sandboxes fit into the job's memory. `places`: how many fit into the allocation's cores, and into its
    memory if the pool sets it."""
    whole = whole_memory()
    if places * sandbox_bytes <= whole:
        return places
    return max(1, (whole - reserve(whole)) // max(1, sandbox_bytes))


def _memory_shortage(sandbox_bytes: int, room: int, places: int) -> str:
    """Return a sentence if the job's memory has room for fewer sandboxes than there are places, else nothing."""
    if room >= places:
        return ""
    words = (
        f"has memory for {room} of {places} sandboxes: its job has {whole_memory() / (1 << 30):.1f} GiB of memory, and each "
        f"sandbox may take {sandbox_bytes / (1 << 30):.1f} GiB"
    )
    log.warning("this node agent %s; beyond their least widths the stages get no more workers", words)
    return words


def _widths(pools: StagePools) -> dict[str, int]:
    return {stage.value: width for stage, width in pools.widths.items()}


async def _as_dict(part: Coroutine[Any, Any, Any]) -> None:
    await part
