"""Attachments: a person's WebSocket, joined with one that the rollout's node agent opens for it.

The server reads none of the data. It checks who may attach, writes into the rollout's history that somebody looks into its
sandbox, and passes messages on. Both ends limit what they send (`wire/attach.py`), and the server limits the rate.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from rollyard.api.auth import CLAIMS
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.query_parameters import accepts, namespace_of
from rollyard.api.services import SERVICES, Services
from rollyard.core.aio import running
from rollyard.core.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from rollyard.kinds.rollout import Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.store.base import RolloutRecord
from rollyard.wire.attach import (
    HEARTBEAT_SECONDS,
    MAX_COMMAND_CHARS,
    MAX_MESSAGE_BYTES,
    AttachKind,
    Exited,
    Ready,
    Refused,
    Start,
    control,
    eval_refusal,
)
from rollyard.wire.node import Attach, LeaseRef

START_SECONDS = 15.0
MOST_ATTACHMENTS = 64
"""Greatest number of attachments at once. Each needs two connections."""
BYTES_PER_SECOND = 32 << 20
"""Greatest rate of one attachment in each direction, so that the server has time for its other work."""
PAUSE_SECONDS = 0.02
_EVENTS = {
    AttachKind.EXEC: HistoryEvent.EXEC,
    AttachKind.COPY_OUT: HistoryEvent.COPY_OUT,
    AttachKind.COPY_IN: HistoryEvent.COPY_IN,
}
"""Entries in the history, for the kinds that may change a sandbox."""


@dataclass
class _Pending:
    """An attachment whose node agent has not yet opened its WebSocket, or has opened it."""

    uid: str
    """Allocation of the node agent."""
    socket: asyncio.Future[web.WebSocketResponse] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    over: asyncio.Event = field(default_factory=asyncio.Event)


class _Attachments(dict[str, _Pending]):
    """Attachments that live now, by their random ids."""


_ATTACHMENTS = web.AppKey("attachments", _Attachments)


def set_up(app: web.Application) -> None:
    app[_ATTACHMENTS] = _Attachments()


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/rollouts/{id}/attach", _attach),
        web.get("/v1/node/attach", _answer),
    ]


@accepts("namespace")
async def _attach(request: web.Request) -> web.WebSocketResponse:
    """Run a program in the sandbox of a rollout, copy files from it or to it, or watch its turns, over a WebSocket."""
    mark_long_lived(request)
    client = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    await client.prepare(request)
    try:
        start = await _read_start(client)
        record, agent, lease = await _find(request, start)
        async with _node_agent(request, agent, lease, start) as node:
            event = _EVENTS.get(start.kind)
            # A look into a kept sandbox changes no result, so it leaves no entry.
            if event is not None and lease.fence == record.fence and not record.status.terminal:
                who = f"by {request[CLAIMS].subject}"
                rollouts = request.app[SERVICES].rollouts
                await rollouts.note_look(record.key, record.fence, event, who, start.words)
            await node.send_str(start.model_dump_json())
            await _join(client, node, record.id)
    except ApiError as error:
        refused = Refused(code=error.code, reason=error.reason, message=str(error))
        await client.send_str(refused.model_dump_json())
    except ConnectionError:
        pass  # one of the two ends is gone
    await client.close()
    return client


@accepts("id")
async def _answer(request: web.Request) -> web.WebSocketResponse:
    """The node agent's WebSocket for one attachment."""
    pending = request.app[_ATTACHMENTS].get(request.query.get("id", ""))
    if pending is None or pending.uid != request[CLAIMS].subject or pending.socket.done():
        raise NotFound("nobody waits for this attachment")
    mark_long_lived(request)
    socket = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    if not pending.socket.done():
        pending.socket.set_result(socket)
        await pending.over.wait()  # the client's handler reads and writes the socket
    await socket.close()
    return socket


async def _read_start(client: web.WebSocketResponse) -> Start:
    try:
        start = control(await client.receive_str(timeout=START_SECONDS))
    except (TimeoutError, TypeError, ValueError) as error:
        raise BadRequest(f"the first message must be a `start`: {error}") from None
    if not isinstance(start, Start):
        raise BadRequest("the first message must be a `start`")
    if start.kind is AttachKind.EXEC and not (start.command and start.command[0]):
        raise Invalid("`command` needs at least one word")
    if start.kind in (AttachKind.COPY_IN, AttachKind.COPY_OUT) and not start.path:
        raise Invalid("`path` must name a file or a folder in the sandbox")
    if any("\0" in word for word in (*start.command, start.path)) or len(start.words) > MAX_COMMAND_CHARS:
        raise Invalid(f"a command may have at most {MAX_COMMAND_CHARS} characters, and none of them may be NUL")
    return start


async def _find(request: web.Request, start: Start) -> tuple[RolloutRecord, ConnectedNodeAgent, LeaseRef]:
    """Return the rollout, the node agent that has its sandbox, and the sandbox's lease: the present one, or that of an
    attempt whose sandbox is kept. Raises ApiError with what one can do otherwise."""
    services: Services = request.app[SERVICES]
    record = await services.rollouts.get(namespace_of(request), request.match_info["id"])
    id = record.id
    if (
        record.status is not Status.RUNNING
        and start.kind in _EVENTS
        and (found := services.node_agents.kept(record.key, record.pool_key))
    ):
        return record, found[0], found[1].lease
    if record.status.terminal:
        raise Conflict(
            f"rollout {id} has ended {record.status}, and its sandbox is gone; `rollyard rollouts describe {id}` shows "
            "its turns"
        )
    if record.status is Status.QUEUED or record.holder is None:
        raise Conflict(
            f"rollout {id} is queued, so it has no sandbox yet; `rollyard rollouts describe {id}` says what it waits for"
        )
    lease = services.rollouts.leases.get(record.key)
    stage = lease.stage if lease is not None and lease.fence == record.fence else record.stage
    if stage is Stage.EVAL and start.kind in _EVENTS and not start.eval:
        raise Conflict(eval_refusal(id))
    agent = services.node_agents.get(record.holder)
    if agent is None:
        raise Unavailable(
            f"the node agent of rollout {id}, on node {record.node}, is not connected now; try again in a few seconds",
            retry_after=5,
        )
    return record, agent, LeaseRef(namespace=record.namespace, id=id, fence=record.fence)


@asynccontextmanager
async def _node_agent(
    request: web.Request, agent: ConnectedNodeAgent, lease: LeaseRef, start: Start
) -> AsyncIterator[web.WebSocketResponse]:
    """The node agent's WebSocket for this attachment. Raises ApiError if the node agent cannot begin."""
    live = request.app[_ATTACHMENTS]
    if len(live) >= MOST_ATTACHMENTS:
        raise TooManyRequests(
            f"{MOST_ATTACHMENTS} people look into sandboxes now; try again when one of them has ended", retry_after=5
        )
    id, pending = secrets.token_hex(16), _Pending(agent.identity.uid)
    live[id] = pending
    try:
        agent.send(Attach(id=id, lease=lease, kind=start.kind.value))
        try:
            async with asyncio.timeout(START_SECONDS):
                node = await pending.socket
                first = control(await node.receive_str())
        except (TimeoutError, TypeError, ValueError):
            raise RequestTimeout(
                f"the node agent of rollout {lease.id} did not answer within {START_SECONDS:g} s; try again"
            ) from None
        if isinstance(first, Refused):
            raise Conflict(first.message)
        if not isinstance(first, Ready):
            raise RequestTimeout(f"the node agent of rollout {lease.id} sent no answer; try again")
        yield node
    finally:
        pending.socket.cancel()
        pending.over.set()
        del live[id]


async def _join(client: web.WebSocketResponse, node: web.WebSocketResponse, id: str) -> None:
    """Pass messages on until one end is gone. Raises Unavailable if the node agent was gone before its last message."""
    async with running(_pass_on(client, node)) as up, running(_pass_on(node, client)) as down:
        await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        if not down.done():
            return
        if not await down:
            raise Unavailable(
                f"the connection to the node agent of rollout {id} is lost, and the program has ended; "
                f"`rollyard rollouts describe {id}` shows how the rollout went on"
            )


async def _pass_on(source: web.WebSocketResponse, target: web.WebSocketResponse) -> bool:
    """Pass messages on until the source closes, or until the last message of a node agent. Return whether there was a last
    message."""
    loop = asyncio.get_running_loop()
    free_at = loop.time()
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
            if _is_last(message.data):
                return True
        elif message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
            free_at = max(free_at, loop.time()) + len(message.data) / BYTES_PER_SECOND
            if (ahead := free_at - loop.time()) > PAUSE_SECONDS:
                await asyncio.sleep(ahead)
    return False


def _is_last(text: str) -> bool:
    try:
        return isinstance(control(text), Exited | Refused)
    except ValueError:
        return False
