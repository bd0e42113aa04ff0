"""The server's side of the node protocol. Each node agent has one WebSocket for short messages. The node
agent sends results, and asks for an endpoint, in separate HTTP requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aiohttp import WSMsgType, web
from pydantic_core import from_json

from rollyard.api import request_bodies
from rollyard.api.allocation_binding import bind
from rollyard.api.auth import CLAIMS, token_allocation
from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES, Services
from rollyard.api.uploads import store_uploads
from rollyard.core.errors import ApiError, BadRequest, Fenced, Invalid, RollyardError, Unavailable
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.sandbox_template import sandbox_capacity
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.missing_images import MOST_READY
from rollyard.server.rollouts.results import Upload, split_upload
from rollyard.server.routing.staleness import allow_under_way
from rollyard.store.base import allocation_uid
from rollyard.trajectory.frames import framed
from rollyard.wire.base import protocol_refusal
from rollyard.wire.node import (
    CLOSE_FENCED,
    CLOSE_HELLO_EXPECTED,
    CLOSE_INCOMPATIBLE,
    CapacityRequest,
    HandBack,
    Heartbeat,
    Hello,
    ImageChanges,
    ImageFault,
    KeptSandboxList,
    LeaseUnread,
    NewEndpoint,
    Renewed,
    RolloutBroke,
    ToNode,
    ToolProofs,
    Welcome,
    from_node,
)

log = logging.getLogger(__name__)

MAX_SHORTAGE_CHARS = 300

HELLO_SECONDS = 10.0
MAX_REASON_CHARS = 200
MAX_KEPT = 1000
MAX_PROOFS = 100
MAX_LOGGED = 10
"""Greatest number of unreadable messages of one connection that are logged."""
MAX_MESSAGE_BYTES = 4 << 20
"""Greatest size of one message on the WebSocket. A heartbeat with ten thousand leases fits, also if every namespace and
id has its greatest length."""


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/node/connect", _connect),
        web.get("/v1/node/run", _get_run),
        web.put("/v1/node/runs", _put_runs),
        web.put("/v1/node/results", _put_results),
        web.post("/v1/node/endpoint", _new_endpoint),
    ]


async def _connect(request: web.Request) -> web.WebSocketResponse:
    services = request.app[SERVICES]
    mark_long_lived(request)
    socket = web.WebSocketResponse(heartbeat=15.0, max_msg_size=MAX_MESSAGE_BYTES)
    await socket.prepare(request)
    try:
        text = await socket.receive_str(timeout=HELLO_SECONDS)
        if refusal := protocol_refusal(from_json(text)):
            log.warning("a node agent was refused: %s", refusal)
            await socket.close(code=CLOSE_INCOMPATIBLE, message=refusal.encode())
            return socket
        hello = from_node(text)
    except (TimeoutError, TypeError, ValueError):
        hello = None
    if not isinstance(hello, Hello):
        await socket.close(code=CLOSE_HELLO_EXPECTED, message=b"the first message must be hello")
        return socket
    try:
        token_allocation(request, hello.identity.uid)
        allocation = await bind(services.store.objects, services.clock, hello.identity)
        await _serve(services, socket, hello, allocation)
    except Fenced as error:
        await socket.close(code=CLOSE_FENCED, message=str(error).encode()[:120])
    return socket


async def _serve(services: Services, socket: web.WebSocketResponse, hello: Hello, allocation: Allocation) -> None:
    pool = await services.pools.rollout_pool(PoolKey(allocation.metadata.namespace, allocation.spec.pool.name))
    outbox: asyncio.Queue[ToNode] = asyncio.Queue()
    expelled = asyncio.Event()
    agent = ConnectedNodeAgent(hello.identity, pool.pool_key, outbox.put_nowait, expel=expelled.set)
    agent.capacity = _capacity(hello, pool, allocation)
    agent.kinds, agent.failed_kinds = frozenset(hello.kinds), hello.failed_kinds
    agent.resumable_kinds = frozenset(hello.resumable_kinds)
    agent.ready_images = set(hello.ready_images[:MOST_READY])
    lost = services.rollouts.leases.renew(agent.holder, hello.held)
    await services.rollouts.lose_missing(agent.holder, hello.held)
    outbox.put_nowait(
        Welcome(
            lease_seconds=services.rollouts.leases.seconds,
            sandbox=pool.spec.sandbox,
            stages=pool.spec.stages,
            places=agent.capacity,
            lost=lost,
        )
    )
    services.node_agents.connect(agent)
    services.node_agents.heartbeat(agent, hello.held, hello.widths)
    closer = asyncio.create_task(_close_when_expelled(socket, expelled))
    writer = asyncio.create_task(_send_messages(socket, outbox))
    try:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await _on_message(services, agent, message.data)
    finally:
        writer.cancel()
        closer.cancel()
        services.node_agents.disconnect(agent)


def _capacity(hello: Hello, pool: RolloutPool, allocation: Allocation) -> int:
    """Return the number of sandboxes that fit on the node.

    A node agent that reconnects sends the number that its first Welcome contained, so a later change of the pool's
    sandbox has no effect on this number.
    """
    if hello.places:
        return hello.places
    return sandbox_capacity(pool.spec.sandbox, allocation.spec.template)


async def _send_messages(socket: web.WebSocketResponse, outbox: asyncio.Queue[ToNode]) -> None:
    while True:
        message = await outbox.get()
        try:
            await socket.send_str(message.model_dump_json())
        except ConnectionError:
            # The loop that receives messages gets the error too. Leases that were not delivered are missing in the next
            # Hello, and `_serve` then ends them.
            return


async def _close_when_expelled(socket: web.WebSocketResponse, expelled: asyncio.Event) -> None:
    await expelled.wait()
    await socket.close(code=CLOSE_FENCED, message=b"Slurm says that this job has ended; this copy must exit")


async def _on_message(services: Services, agent: ConnectedNodeAgent, text: str) -> None:
    try:
        message = from_node(text)
    except ValueError as error:
        agent.unreadable += 1
        if agent.unreadable <= MAX_LOGGED:
            log.warning("unreadable message of node agent %s: %s", agent.holder, str(error)[:1000])
        return
    match message:
        case CapacityRequest():
            services.node_agents.request_capacity(agent, message)
        case Heartbeat():
            lost = services.rollouts.leases.renew(agent.holder, message.held)
            services.node_agents.heartbeat(agent, message.held, message.widths)
            agent.sandboxes = message.sandboxes
            agent.images = message.images
            agent.memory_shortage = message.memory_shortage[:MAX_SHORTAGE_CHARS]
            agent.image_shortage = message.image_shortage[:MAX_SHORTAGE_CHARS]
            agent.preparing = message.preparing[:MAX_SHORTAGE_CHARS]
            agent.send(Renewed(sent_at=message.sent_at, lost=lost))
        case KeptSandboxList(kept=kept):
            agent.kept = {one.lease.rollout: one for one in kept[:MAX_KEPT]}
        case ToolProofs(proofs=proofs):
            pools = await _inference_pools(services, agent)
            for one in proofs[:MAX_PROOFS]:
                services.endpoints.note_proof(one.tokenizer, one.proof.shortened, pools)
        case HandBack():
            try:
                await _take_back(services, agent, message)
            except RollyardError as error:  # when the lease expires, the rollout is queued again
                log.warning("the hand-back of %s was not stored: %s", message.lease.id, error)
        case ImageChanges():
            try:
                await services.images.report(agent, message)
            except RollyardError as error:  # their delays end by themselves
                log.warning("the images of node agent %s were not stored: %s", agent.holder, error)
        case _:
            pass  # a message from a newer version


async def _take_back(services: Services, agent: ConnectedNodeAgent, message: HandBack) -> None:
    ref, uid = message.lease, agent.identity.uid
    match message.cause:
        case RolloutBroke(message=error):
            await services.rollouts.fail(ref, uid, error)
        case ImageFault() as fault:
            await services.images.hand_back(ref, agent, fault)
        case cause:
            reason, lost = message.reason[:MAX_REASON_CHARS], isinstance(cause, LeaseUnread)
            await services.rollouts.hand_back(ref, uid, reason, handed_back=not lost)


async def _inference_pools(services: Services, agent: ConnectedNodeAgent) -> set[PoolKey]:
    """Return the InferencePools of a node agent. It has no say about others."""
    try:
        pool = await services.pools.rollout_pool(agent.pool)
    except RollyardError:  # the pool is deleted, or the server stops
        return set()
    return {PoolKey(agent.pool.namespace, inference) for inference in pool.spec.inference.values()}


async def _put_runs(request: web.Request) -> web.Response:
    rollouts, holder = request.app[SERVICES].rollouts, request[CLAIMS].subject
    return await store_uploads(request, _run, lambda runs: rollouts.store_runs(runs, holder))


async def _put_results(request: web.Request) -> web.Response:
    rollouts, holder = request.app[SERVICES].rollouts, request[CLAIMS].subject

    async def store(uploads: list[Upload]) -> Sequence[ApiError | None]:
        return await rollouts.finish_all([(upload.header, upload.outcome) for upload in uploads], holder)

    return await store_uploads(request, split_upload, store)


def _run(body: bytes) -> Upload:
    """Read an uploaded result of RUN. Raises Invalid, TooLarge."""
    upload = split_upload(body)
    if upload.outcome is None or upload.artifact is None:
        raise Invalid("a result of RUN has two frames: the tokens and the artifact")
    return upload


@accepts("namespace", "id", "fence")
async def _get_run(request: web.Request) -> web.Response:
    """Send the stored result of RUN as two frames: the tokens and the artifact."""
    record, store = await leased_rollout(request), request.app[SERVICES].store
    if record.result is None or record.artifact is None or record.stage is not Stage.EVAL:
        raise Invalid(f"rollout {record.id} has no stored run; it is in {record.stage}")
    frames = [framed(await store.packs.read(ref)) for ref in (record.result, record.artifact)]
    return web.Response(body=b"".join(frames), content_type="application/octet-stream")


async def _new_endpoint(request: web.Request) -> web.Response:
    """Choose an endpoint after a failure, or when a better endpoint may exist. Store the rollout's endpoint if it changes.

    Raises Unavailable if no endpoint can be chosen.
    """
    services = request.app[SERVICES]
    try:
        wanted = NewEndpoint.from_wire(await request_bodies.read_message(request))
    except ValueError as error:
        raise BadRequest(f"the body is not a NewEndpoint: {error}") from None
    uid = request[CLAIMS].subject
    record = await services.rollouts.get(wanted.lease.namespace, wanted.lease.id)
    if allocation_uid(record.holder) != uid:
        raise Fenced(f"lease {wanted.lease.fence} of rollout {record.id} is void; drop its work")
    if wanted.failed and not wanted.again:
        services.endpoints.complain(wanted.failed, uid, wanted.why or "a node agent could not reach it")
    pool = await services.pools.rollout_pool(record.pool_key)
    name = pool.spec.inference.get(wanted.role)
    if name is None:
        raise Invalid(f"pool {record.pool} has no inference role {wanted.role!r}")
    current, key = record.endpoints.get(wanted.role, ""), PoolKey(record.namespace, name)
    agent = services.node_agents.of_allocation(uid)
    node = agent.identity.node if agent is not None else ""
    allow = allow_under_way(record, wanted.role, services.endpoints.weights(key))
    endpoint = services.choice.choose_again(key, current, wanted.failed, node, allow)
    if endpoint is None:
        if wanted.failed:  # without a failure the rollout continues at its present endpoint
            services.rollouts.leases.park(wanted.lease)
        raise Unavailable(f"no endpoint of InferencePool {name} is ready", retry_after=1)
    services.rollouts.leases.unpark(wanted.lease)
    if endpoint.id != current:
        reason = "EndpointFailed" if wanted.failed else "BetterEndpoint"
        await services.rollouts.move_endpoint(wanted.lease, uid, wanted.role, endpoint.id, reason, wanted.why)
    return web.json_response(endpoint.model_dump())
