"""The node agent. It runs one asyncio task for each lease, keeps one connection to the server, and stops the work on
expired leases. It is one file, because every message of the server changes the same leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Any, Self

import aiohttp

from rollyard.client.node_connection import NodeConnection, WelcomedSocket
from rollyard.client.server_link import ServerLink
from rollyard.core.aio import Waker, end_tasks, running
from rollyard.core.errors import AllocationEnds, Fenced, ImageUnavailable, NoEndpoint, RollyardError
from rollyard.kinds.base import evolve
from rollyard.kinds.failure_table import NODE_AGENT_ERROR
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import POLICY_ROLE
from rollyard.kinds.values.image_reference import parse_image
from rollyard.node.allocation_end import AllocationEnd
from rollyard.node.attachments import Attachments
from rollyard.node.image_pulls import ImagePulls
from rollyard.node.kept_sandboxes import KeptSandboxes
from rollyard.node.lease_models import RoleSampler
from rollyard.node.lease_run import LeaseRun, NodeContext
from rollyard.node.lease_sampler import LeaseSampler, first_endpoint
from rollyard.node.result_uploads import ResultUploads
from rollyard.node.sandbox_room import SandboxRoom
from rollyard.node.stage_workers import StagePools
from rollyard.sandbox.warm_sandboxes import WarmSandboxes
from rollyard.tasks.installed_handlers import Handlers
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.template_cache import TemplateCache
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint
from rollyard.wire.node import (
    IMAGE_REASON,
    STOPPED_REASON,
    UNREADABLE_LEASE_REASON,
    Attach,
    Cancel,
    CapacityRequest,
    Deadline,
    Drain,
    Grant,
    HandBack,
    Heartbeat,
    Hello,
    KeptSandboxList,
    Lease,
    LeaseKey,
    LeaseRef,
    PrefetchImages,
    RechooseEndpoint,
    Renewed,
    Resize,
    SandboxCounts,
    ToNode,
    ToolProofs,
    UnreadableLease,
    Welcome,
)

log = logging.getLogger(__name__)

HAND_BACK_SECONDS = 5.0
TURN_SECONDS, SAVE_SECONDS = 10.0, 10.0
"""Seconds in which the turns under way end, and in which they and snapshots are saved, before the rollouts are handed back.
Slurm kills a job 30 s after TERM, if the site has not changed it."""
LONGEST_TURN_SECONDS = 17.0
"""Seconds in which the turn under way ends in a rollout that needs no snapshot. The rest of both times is for the upload of the
turn."""
KEPT_SHARE = 4
"""One in this number of the allocation's sandboxes may be the kept sandbox of a failed rollout."""
MAX_ERROR_CHARS = 2000


async def run(
    link: ServerLink,
    http: aiohttp.ClientSession,
    models: aiohttp.ClientSession,
    handlers: Handlers,
    stop: asyncio.Event,
) -> None:
    """Run an allocation's node agent until `stop` is set or a drain is done, then hand back all leases.

    Raises Fenced and Incompatible if the server refuses this process, and SandboxStartFailed if no sandbox runtime works
    here. In these cases no lease is handed back.
    """
    async with running(NodeAgent.start(link, http, models, handlers)) as started, running(stop.wait()) as stopped:
        await asyncio.wait([started, stopped], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started.result().run(stop)


class NodeAgent:
    """Runs all leases of one allocation."""

    def __init__(
        self,
        link: ServerLink,
        http: aiohttp.ClientSession,
        models: aiohttp.ClientSession,
        connection: NodeConnection,
        first: WelcomedSocket,
        hello: Hello,
        handlers: Handlers,
        room: SandboxRoom,
    ) -> None:
        """`first`: the first connection; its Welcome holds until the job ends. `hello`: what every Hello says."""
        welcome = first.welcome
        default = welcome.sandbox.default_image
        self._link = link
        self._http = http
        self._tokens = TokenClient(models)
        self._connection = connection
        self._first = first
        self._fixed_hello = hello
        self._room = room
        self._attachments = Attachments(link, http)
        self._runs: dict[LeaseKey, tuple[LeaseRun, asyncio.Task[None]]] = {}
        self._samplers: dict[LeaseKey, dict[str, LeaseSampler]] = {}
        """Lease -> role -> sampler."""
        templates = TemplateCache()
        templates.proven.connect(lambda proof: self._proofs_changed())
        self._proofs_reported = True
        """True if the server knows all proofs of tool calls."""
        self._kept_reported = True
        """True if the server knows which sandboxes are kept."""
        widths = {stage: getattr(welcome.stages, stage.value.lower()).workers.min for stage in Stage}
        self._node = NodeContext(
            kept=KeptSandboxes(max(1, welcome.places // KEPT_SHARE), self._kept_changed),
            pools=StagePools(widths),
            sandboxes=WarmSandboxes(room.factory, welcome.sandbox.warm.max, room.capacity),
            images=ImagePulls(room.factory.images, connection.send, None if default is None else parse_image(default)),
            handlers=handlers,
            uploads=ResultUploads(link, http),
            templates=templates,
            policy=self._policy,
            role=self._role,
            sandbox=welcome.sandbox,
            stages=welcome.stages,
            node=hello.identity.node,
            end=AllocationEnd(),
        )
        self._lease_seconds = welcome.lease_seconds
        self._renewed_at = asyncio.get_running_loop().time()
        self._renewed = Waker()
        self._grants = 0
        """Number of messages `Grant` received since the last `Welcome`."""
        self._stage_changed = Waker()
        self._drain = False
        self._drained = asyncio.Event()
        self._stopping = False
        """True: all leases are handed back, also those that still come."""

    @classmethod
    async def start(
        cls, link: ServerLink, http: aiohttp.ClientSession, models: aiohttp.ClientSession, handlers: Handlers
    ) -> Self:
        """Connect, and find on this node what the server's first Welcome asks for. Raises Fenced, Incompatible, and
        SandboxStartFailed."""
        connection = NodeConnection(link, http)
        hello = Hello(
            identity=link.identity(),
            kinds=sorted(handlers.loaded),
            resumable_kinds=sorted(kind for kind, handler in handlers.loaded.items() if handler.is_resumable),
            failed_kinds=dict(handlers.failed),
        )
        first = await connection.open(lambda: hello)
        room = await SandboxRoom.find(first.welcome.sandbox, first.welcome.places)
        return cls(link, http, models, connection, first, hello, handlers, room)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a drain is done, then hand back all leases. Raises Fenced and Incompatible."""
        parts: list[Coroutine[Any, Any, object]] = [
            self._stay_connected(),
            self._beat(),
            self._watch_clock(),
            self._leave_before_end(),
            self._node.images.run(),
            self._drained.wait(),
            stop.wait(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._stopping = True
            await self._connection.send(CapacityRequest())  # else what is handed back makes room for new leases
            works = [work for work, _ in self._runs.values()]
            await asyncio.gather(self._all_received(), self._hand_back(STOPPED_REASON, works))
            await self._all_received()  # also what was refused meanwhile
        finally:
            await end_tasks(*tasks, *[task for _, task in self._runs.values()])
            await self._attachments.close()
            await self._node.kept.close()
            await self._node.images.close()
            await self._node.sandboxes.close()
            await self._room.factory.close()

    async def _stay_connected(self) -> None:
        opened = self._first
        while True:
            self._welcome(opened.welcome)
            await self._connection.receive(opened, self._on_message)
            opened = await self._connection.open(self._hello)

    # messages from the server

    async def _on_message(self, message: ToNode) -> None:
        match message:
            case Grant(leases=leases, unread=unread):
                self._grants += 1
                for lease in leases:
                    if self._stopping:  # it was on its way
                        await self._connection.send(HandBack(lease=lease, reason=STOPPED_REASON))
                    else:
                        self._accept(lease)
                await self._refuse_unreadable(unread)
            case Renewed(sent_at=sent_at, lost=lost):
                self._renewed_at = max(self._renewed_at, sent_at)
                self._renewed.wake()
                self._stop_leases(lost, "the server gave it to another node agent")
            case Cancel(lease=ref):
                self._stop_leases([ref], "cancelled")
            case RechooseEndpoint(lease=ref, role=role, now=now):
                if (sampler := self._samplers.get(ref.key, {}).get(role)) is not None:
                    sampler.rechoose(now=now)
            case Attach(lease=ref):
                found = self._runs.get(ref.key)
                self._attachments.begin(message, found[0] if found is not None else self._node.kept.get(ref.key))
            case Drain():
                self._drain = True
                self._node.sandboxes.drain()
                await self._node.kept.close()
                self._heartbeat_soon()
            case Deadline(seconds=seconds, reason=reason):
                self._node.end.set(seconds, reason)
            case PrefetchImages(images=images):
                self._node.images.prefetch(images)
            case Resize(widths=widths, places=places):
                known = {stage: widths[stage] for stage in Stage if stage in widths}
                places = min(places, self._room.most)
                self._node.pools.request(known, places)
                self._node.sandboxes.places = places
                self._heartbeat_soon()

    def _welcome(self, welcome: Welcome) -> None:
        """Take up a new connection. Only the first Welcome says what sandboxes and stages are like."""
        self._grants = 0
        self._kept_reported = not self._node.kept
        self._proofs_reported = not self._node.templates.proofs()
        self._lease_seconds = welcome.lease_seconds
        self._renewed_at = asyncio.get_running_loop().time()
        self._stop_leases(welcome.lost, "the server gave it to another node agent")
        self._heartbeat_soon()

    # leases

    def _accept(self, lease: Lease) -> None:
        key = lease.key
        if key in self._runs:
            return
        work = LeaseRun(self._node, lease, self._heartbeat_soon)
        self._runs[key] = (work, asyncio.create_task(self._run_lease(key, work)))
        self._heartbeat_soon()

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
        except (NoEndpoint, AllocationEnds) as error:
            await self._connection.send(HandBack(lease=work.ref, reason=str(error)))
        except ImageUnavailable as error:
            await self._connection.send(HandBack(lease=work.ref, reason=IMAGE_REASON, image=work.image_fault(error)))
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
            self._samplers.pop(key, None)
            self._heartbeat_soon()

    def _stop_leases(self, refs: list[LeaseRef], why: str) -> None:
        for ref in refs:
            found = self._runs.pop(ref.key, None)
            if found is not None:
                log.info("stopping rollout %s: %s", ref.id, why)
                found[1].cancel()

    async def _all_received(self) -> None:
        """Wait until the server has dealt with all messages. When a connection ends, it reads no further ones."""
        sent_at = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_SECONDS):
                held, widths = [work.ref for work, _ in self._runs.values()], _widths(self._node.pools)
                sent = await self._connection.send(Heartbeat(held=held, widths=widths, sent_at=sent_at))
                while sent and self._renewed_at < sent_at:
                    await self._renewed.pause(HAND_BACK_SECONDS)

    async def _leave_before_end(self) -> None:
        """Shortly before the allocation's end, hand back the rollouts whose turn has not ended in time."""
        while True:
            await self._node.end.near()
            leaving = [work for work, _ in self._runs.values() if work.can_leave]
            await self._hand_back(self._node.end.reason, leaving)
            await self._node.end.changed()

    async def _hand_back(self, reason: str, works: Sequence[LeaseRun]) -> None:
        """Hand back leases, each as soon as its turns so far are saved. The connection must still be open."""

        async def leave(work: LeaseRun) -> None:
            with contextlib.suppress(TimeoutError, RollyardError):  # what is saved is enough to go on
                async with asyncio.timeout(TURN_SECONDS + SAVE_SECONDS):
                    await work.suspend(TURN_SECONDS, LONGEST_TURN_SECONDS)
            if (found := self._runs.get(work.ref.key)) is not None:
                found[1].cancel()
                await self._connection.send(HandBack(lease=work.ref, reason=reason))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TURN_SECONDS + SAVE_SECONDS + HAND_BACK_SECONDS):
                await asyncio.gather(*map(leave, works), return_exceptions=True)

    # messages to the server

    def _hello(self) -> Hello:
        return evolve(
            self._fixed_hello,
            held=[work.ref for work, _ in self._runs.values()],
            widths=_widths(self._node.pools),
            places=self._room.capacity,
            ready_images=self._node.images.ready(),
        )

    def _heartbeat_soon(self) -> None:
        self._stage_changed.wake()

    async def _beat(self) -> None:
        """Send a heartbeat at regular times, and soon after a change, such as a new lease, a new stage or new widths.
        After every heartbeat, request leases for the free capacity."""
        loop = asyncio.get_running_loop()
        while True:
            await self._stage_changed.pause(self._lease_seconds / 3)
            pools, kept = self._node.pools, self._node.kept
            pools.apply_requested(self._count_before_eval() + len(kept))
            held = [work.ref for work, _ in self._runs.values()]
            await self._connection.send(
                Heartbeat(
                    held=held,
                    widths=_widths(pools),
                    sandboxes=SandboxCounts(**asdict(self._node.sandboxes.counts)),
                    images=self._node.images.storage(),
                    sent_at=loop.time(),
                    memory_shortage=self._room.memory_shortage,
                    image_shortage=self._room.image_shortage,
                    preparing=self._node.sandboxes.preparing,
                )
            )
            await self._connection.send(self._request_capacity(pools))
            if not self._kept_reported:
                self._kept_reported = await self._connection.send(KeptSandboxList(kept=kept.reports()))
            if not self._proofs_reported:
                self._proofs_reported = await self._connection.send(ToolProofs(proofs=self._node.templates.proofs()))
            if self._drain and not self._runs:
                self._drained.set()
            await asyncio.sleep(0.02)  # changes that come close together are sent in one heartbeat

    def _request_capacity(self, pools: StagePools) -> CapacityRequest:
        if self._drain or self._stopping:
            return CapacityRequest()
        early = self._count_before_eval()
        late = len(self._runs) - early
        evals = max(0, pools[Stage.EVAL].limit - late)
        return CapacityRequest(
            init=pools.free_capacity(early + len(self._node.kept)),
            eval=evals,
            kinds=self._fixed_hello.kinds,
            grants=self._grants,
        )

    def _count_before_eval(self) -> int:
        """Count the rollouts before EVAL. Each of these rollouts has a sandbox, or will need one soon."""
        return sum(work.stage is not Stage.EVAL for work, _ in self._runs.values())

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

    # shared parts

    def _policy(self, lease: Lease, template: ChatTemplate) -> LeaseSampler:
        return self._sampler(lease, POLICY_ROLE, lease.endpoints[POLICY_ROLE], template, lease.budgets.context_tokens)

    async def _role(self, lease: Lease, role: str) -> RoleSampler:
        """Return the sampler and the template of a role that a task handler calls. Raises as `first_endpoint`, and
        TemplateUnusable."""
        endpoint = lease.endpoints.get(role) or await first_endpoint(self._link, self._http, _ref(lease), role)
        template = await self._node.templates.get(endpoint.tokenizer)
        return RoleSampler(self._sampler(lease, role, endpoint, template, None), template)

    def _sampler(
        self, lease: Lease, role: str, endpoint: Endpoint, template: ChatTemplate, context: int | None
    ) -> LeaseSampler:
        ref = _ref(lease)
        made = LeaseSampler(self._link, self._http, self._tokens, ref, endpoint, template.stop_ids, context, role)
        self._samplers.setdefault(ref.key, {})[role] = made
        return made


def _ref(lease: Lease) -> LeaseRef:
    return LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence)


def _widths(pools: StagePools) -> dict[str, int]:
    return {stage.value: width for stage, width in pools.widths.items()}
