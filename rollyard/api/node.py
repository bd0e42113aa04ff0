"""The server's side of the node protocol. Each node agent has one WebSocket for short messages. The node
agent sends results, and asks for an endpoint, in separate HTTP requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import WSMsgType, web
from pydantic_core import from_json

from rollyard.api import request_bodies
from rollyard.api.allocation_binding import bind
from rollyard.api.auth import CLAIMS, token_allocation
from rollyard.api.error_status import status_body
from rollyard.api.leased_rollout import leased_rollout
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.query_parameters import accepts
from rollyard.api.rollouts import pool_of
from rollyard.api.services import SERVICES, Services
from rollyard.api.trajectories import wants_columns
from rollyard.core.errors import ApiError, BadRequest, Fenced, Invalid, NotFound, RollyardError, TooLarge, Unavailable
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import Stage
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.sandbox_template import sandbox_capacity
from rollyard.server.rollouts.connected_agents import ConnectedAgent
from rollyard.server.rollouts.image_holds import MOST_READY
from rollyard.server.rollouts.results import run_as_json, split_upload
from rollyard.server.routing.staleness import allow_under_way
from rollyard.server.store.base import allocation_uid
from rollyard.wire.base import protocol_refusal
from rollyard.wire.columns import VERSION
from rollyard.wire.frames import unframed
from rollyard.wire.node import (
    CLOSE_FENCED,
    CLOSE_HELLO_EXPECTED,
    CLOSE_INCOMPATIBLE,
    MAX_RESULT_BYTES,
    MAX_RESULTS,
    NODE_AGENT_ERROR,
    UNREADABLE_LEASE_REASON,
    CapacityRequest,
    HandBack,
    Heartbeat,
    Hello,
    ImageChanges,
    KeptSandboxList,
    LeaseRef,
    NewEndpoint,
    Renewed,
    ResultHeader,
    ToNode,
    Welcome,
    from_node,
)

log = logging.getLogger(__name__)

MAX_SHORTAGE_CHARS = 300

HELLO_SECONDS = 10.0
MAX_REASON_CHARS = 200
MAX_KEPT = 1000
MAX_LOGGED = 10
"""Greatest number of unreadable messages of one connection that are logged."""
DEFAULT_MAX_ATTEMPTS = 3
MAX_MESSAGE_BYTES = 4 << 20
"""Greatest size of one message on the WebSocket. A heartbeat with ten thousand leases fits, also if every namespace and
id has its greatest length."""
Upload = tuple[ResultHeader, bytes]
"""Header and zstd frame of one upload: the outcome of the stage RUN, or the result of a rollout."""


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/node/connect", _connect),
        web.put("/v1/node/run", _put_run),
        web.get("/v1/node/run", _get_run),
        web.put("/v1/node/result", _put_result),
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
        allocation = await bind(services.store, services.clock, hello.identity)
        await _serve(services, socket, hello, allocation)
    except Fenced as error:
        await socket.close(code=CLOSE_FENCED, message=str(error).encode()[:120])
    return socket


async def _serve(services: Services, socket: web.WebSocketResponse, hello: Hello, allocation: Allocation) -> None:
    pool = await pool_of(services, allocation.metadata.namespace, allocation.spec.pool.name)
    outbox: asyncio.Queue[ToNode] = asyncio.Queue()
    expelled = asyncio.Event()
    agent = ConnectedAgent(hello.identity, pool.pool_key, outbox.put_nowait, expel=expelled.set)
    agent.capacity = _capacity(hello, pool, allocation)
    agent.kinds, agent.failed_kinds = frozenset(hello.kinds), hello.failed_kinds
    agent.ready_images = set(hello.ready_images[:MOST_READY])
    agent.attachments = frozenset(hello.attachments)
    lost = services.rollouts.leases.renew(agent.holder, hello.held)
    for (namespace, id), lease in services.rollouts.leases.missing(agent.holder, hello.held):
        await services.rollouts.lose(LeaseRef(namespace=namespace, id=id, fence=lease.fence), "NotReceived")
    outbox.put_nowait(
        Welcome(
            epoch=services.store.epoch,
            lease_seconds=services.rollouts.leases.seconds,
            sandbox=pool.spec.sandbox,
            stages=pool.spec.stages,
            places=agent.capacity,
            columns=VERSION,
            lost=lost,
            results=MAX_RESULTS,
        )
    )
    services.agents.connect(agent)
    services.agents.heartbeat(agent, hello.held, hello.widths)
    closer = asyncio.create_task(_close_when_expelled(socket, expelled))
    writer = asyncio.create_task(_send_messages(socket, outbox))
    try:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await _on_message(services, agent, message.data)
    finally:
        writer.cancel()
        closer.cancel()
        services.agents.disconnect(agent)


def _capacity(hello: Hello, pool: RolloutPool, allocation: Allocation) -> int:
    """Return the number of sandboxes that fit on the node.

    A node agent that reconnects sends the number that its first Welcome contained, so a later change of the pool's
    sandbox has no effect on this number.
    """
    if hello.places:
        return hello.places
    if hello.widths:  # an older node agent sends no capacity; all its present workers fit
        return sum(hello.widths.values())
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


async def _on_message(services: Services, agent: ConnectedAgent, text: str) -> None:
    try:
        message = from_node(text)
    except ValueError as error:
        agent.unreadable += 1
        if agent.unreadable <= MAX_LOGGED:
            log.warning("unreadable message of node agent %s: %s", agent.holder, str(error)[:1000])
        return
    match message:
        case CapacityRequest():
            services.agents.request_capacity(agent, message)
        case Heartbeat():
            lost = services.rollouts.leases.renew(agent.holder, message.held)
            services.agents.heartbeat(agent, message.held, message.widths)
            agent.sandboxes = message.sandboxes
            agent.memory_shortage = message.memory_shortage[:MAX_SHORTAGE_CHARS]
            agent.send(Renewed(sent_at=message.sent_at, lost=lost))
        case KeptSandboxList(kept=kept):
            agent.kept = {one.lease.rollout: one for one in kept[:MAX_KEPT]}
        case HandBack():
            try:
                if message.reason == NODE_AGENT_ERROR:
                    # The work counts as an attempt, because the rollout may have caused the error.
                    limit = await _max_attempts(services, message.lease)
                    await services.rollouts.fail(
                        message.lease, agent.identity.uid, message.reason, message.message, limit
                    )
                elif message.image is not None:
                    await services.images.hand_back(message.lease, agent, message.image)
                else:
                    # Other node agents of the same release cannot read the lease either. The hand-back therefore counts
                    # as a loss, and the number of losses is limited.
                    unread = message.reason == UNREADABLE_LEASE_REASON
                    await services.rollouts.hand_back(
                        message.lease, agent.identity.uid, message.reason[:MAX_REASON_CHARS], handed_back=not unread
                    )
            except RollyardError as error:  # when the lease expires, the rollout is queued again
                log.warning("the hand-back of %s was not stored: %s", message.lease.id, error)
        case ImageChanges():
            try:
                await services.images.report(agent, message)
            except RollyardError as error:  # the holds end by themselves
                log.warning("the images of node agent %s were not stored: %s", agent.holder, error)
        case _:
            pass  # a message from a newer version


async def _put_run(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    header, frame = split_upload(bytes(await request_bodies.read(request, MAX_RESULT_BYTES)))
    versions = frozenset(header.weights_versions)
    await services.rollouts.run_stored(header.lease, request[CLAIMS].subject, frame, versions, header.timings)
    return web.Response(status=204)


async def _put_result(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    header, frame = split_upload(bytes(await request_bodies.read(request, MAX_RESULT_BYTES)))
    await services.rollouts.finish(header, request[CLAIMS].subject, frame, await _max_attempts(services, header.lease))
    return web.Response(status=204)


async def _put_runs(request: web.Request) -> web.Response:
    async def store(services: Services, uploads: list[Upload]) -> Sequence[ApiError | None]:
        runs = [(h.lease, frame, frozenset(h.weights_versions), h.timings) for h, frame in uploads]
        return await services.rollouts.store_runs(runs, request[CLAIMS].subject)

    return await _store_uploads(request, store)


async def _put_results(request: web.Request) -> web.Response:
    async def store(services: Services, uploads: list[Upload]) -> Sequence[ApiError | None]:
        results = [(header, frame, await _max_attempts(services, header.lease)) for header, frame in uploads]
        return await services.rollouts.finish_all(results, request[CLAIMS].subject)

    return await _store_uploads(request, store)


async def _store_uploads(
    request: web.Request, store: Callable[[Services, list[Upload]], Awaitable[Sequence[ApiError | None]]]
) -> web.Response:
    """Store several uploads. For each, the answer has null if the upload was stored, else the `Status` of its error."""
    try:
        bodies = unframed(bytes(await request_bodies.read(request, MAX_RESULT_BYTES)))
    except ValueError as error:
        raise BadRequest(f"the body has no whole number of results: {error}") from None
    if len(bodies) > MAX_RESULTS:
        raise TooLarge(f"one request may have at most {MAX_RESULTS} results, but this one has {len(bodies)}")
    errors: dict[int, ApiError | None] = {}
    uploads: dict[int, Upload] = {}
    for i, body in enumerate(bodies):
        try:
            uploads[i] = split_upload(body)
        except (Invalid, TooLarge) as refusal:
            errors[i] = refusal
    errors |= zip(uploads, await store(request.app[SERVICES], list(uploads.values())), strict=True)
    ordered = (errors[i] for i in range(len(bodies)))
    return web.json_response({"results": [None if e is None else status_body(e) for e in ordered]})


async def _max_attempts(services: Services, ref: LeaseRef) -> int:
    """Return the pool's limit of attempts, or the default if the lease is void or the pool is gone."""
    lease = services.rollouts.leases.get(ref.rollout)
    if lease is None:
        return DEFAULT_MAX_ATTEMPTS
    try:
        return (await pool_of(services, *lease.pool)).spec.max_attempts
    except NotFound:
        return DEFAULT_MAX_ATTEMPTS


@accepts("namespace", "id", "fence")
async def _get_run(request: web.Request) -> web.Response:
    record = await leased_rollout(request)
    if record.run is None or record.stage is not Stage.EVAL:
        raise Invalid(f"rollout {record.id} has no stored run; it is in {record.stage}")
    frame = await request.app[SERVICES].store.read_blob(record.run)
    if not wants_columns(request):
        frame = await asyncio.to_thread(run_as_json, frame)
    return web.Response(body=frame, content_type="application/zstd")


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
    pool = await pool_of(services, record.namespace, record.pool)
    name = pool.spec.inference.get(wanted.role)
    if name is None:
        raise Invalid(f"pool {record.pool} has no inference role {wanted.role!r}")
    current, key = record.endpoints.get(wanted.role, ""), PoolKey(record.namespace, name)
    agent = services.agents.of_allocation(uid)
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
