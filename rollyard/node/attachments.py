"""Attachments: people who look into the sandboxes of this node agent's rollouts, or watch their turns.

For each attachment the server sends an `Attach`. The node agent then opens a WebSocket for it, so that a flood of output
never delays a heartbeat or a lease. When the WebSocket closes, for whatever reason, the program in the sandbox ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp

from rollyard.client.attached_socket import AttachedSocket
from rollyard.client.server_link import ServerLink
from rollyard.core.aio import end_tasks, running
from rollyard.core.errors import (
    ApiError,
    Conflict,
    SandboxBroken,
    SandboxLost,
    TooManyRequests,
    Unavailable,
    connection_failure_text,
)
from rollyard.kinds.rollout import Stage
from rollyard.node.kept_sandboxes import Kept
from rollyard.node.lease_run import LeaseRun
from rollyard.sandbox.program import Program, ProgramRefused, ProgramSpec
from rollyard.tasks.tool_results import shorten
from rollyard.trajectory import Turn
from rollyard.wire.attach import (
    HEARTBEAT_SECONDS,
    MAX_MESSAGE_BYTES,
    STDIN,
    STDOUT,
    AttachKind,
    Control,
    EndInput,
    Exited,
    Ready,
    Refused,
    SendSignal,
    Start,
    WindowSize,
    eval_refusal,
)
from rollyard.wire.node import Attach

log = logging.getLogger(__name__)

START_SECONDS = 30.0
CLOSE_SECONDS = 10.0
"""Time for the server to close the WebSocket after the last message."""
TURNS_SECONDS = 0.3
"""Seconds between two looks for new turns."""
FILE_TRANSFER = "rollyard.sandbox_agent.file_transfer"
Received = AsyncIterator[Control | tuple[int, bytes]]


class Attachments:
    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: Attach, run: LeaseRun | Kept | None) -> None:
        """Serve an attachment. `run`: work on the lease that `message` names, or its kept sandbox; None if both
        are gone."""
        task = asyncio.create_task(self._attach(message, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await end_tasks(*self._tasks)

    async def _attach(self, message: Attach, run: LeaseRun | Kept | None) -> None:
        try:
            url = (await self._link.url()).replace("https://", "wss://", 1) + "/v1/node/attach"
            async with self._http.ws_connect(
                url, params={"id": message.id}, heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES
            ) as socket:
                attached = AttachedSocket(socket)
                await _serve(attached, message, run)
                await attached.wait_until_closed(CLOSE_SECONDS)
        except (aiohttp.ClientError, Unavailable, TimeoutError, OSError) as error:
            log.info("an attachment to rollout %s ended: %s", message.lease.id, connection_failure_text(error))


async def _serve(socket: AttachedSocket, message: Attach, run: LeaseRun | Kept | None) -> None:
    received = socket.messages()
    try:
        turns = message.kind == AttachKind.TURNS and isinstance(run, LeaseRun)
        if run is None or not (turns or (run.sandbox is not None and run.sandbox.alive)):
            where = f"is in {run.stage}" if run is not None else "has just left this node"
            raise Conflict(
                f"rollout {message.lease.id} {where}, and has no sandbox now; try again when "
                f"`rollyard rollouts get {message.lease.id}` shows RUN"
            )
        await socket.send(Ready())
        async with asyncio.timeout(START_SECONDS):
            start = await anext(received, None)
        if isinstance(start, Start) and start.kind.value == message.kind:
            if start.kind is AttachKind.TURNS and isinstance(run, LeaseRun):
                await _connect(socket, _send_turns(socket, run, start), _ignore(received))
            else:
                await _run_program(socket, received, start, run)
    except ApiError as error:
        await socket.send(Refused(code=error.code, reason=error.reason, message=str(error)))


async def _run_program(socket: AttachedSocket, received: Received, start: Start, run: LeaseRun | Kept) -> None:
    id, stage, sandbox = run.ref.id, run.stage, run.sandbox
    if stage is Stage.EVAL and not start.eval and isinstance(run, LeaseRun):
        raise Conflict(eval_refusal(id))
    assert sandbox is not None
    try:
        async with await sandbox.start_program(_spec(start)) as program:
            run.note_look()
            await _connect(socket, _send_outputs(socket, program), _receive(socket, received, program))
    except ProgramRefused as error:
        raise TooManyRequests(f"rollout {id}: {error}") from None
    except (SandboxBroken, SandboxLost):
        why = run.why_gone if isinstance(run, Kept) else f"the rollout has left {stage}"
        raise Conflict(
            f"the sandbox of rollout {id} is gone, because {why}; `rollyard rollouts describe {id}` shows how it went on"
        ) from None


def _spec(start: Start) -> ProgramSpec:
    if start.kind is AttachKind.EXEC:
        return ProgramSpec(start.command, start.tty, start.rows, start.columns, start.term)
    direction = "out" if start.kind is AttachKind.COPY_OUT else "in"
    return ProgramSpec([direction, start.path], own=FILE_TRANSFER)


async def _connect(socket: AttachedSocket, send: Coroutine[Any, Any, int], receive: Coroutine[Any, Any, None]) -> None:
    """Work in both directions, until `send` returns the exit code or the client is gone. Raises SandboxLost; BadRequest
    if the client sends more than it may."""
    sending, receiving = asyncio.create_task(send), asyncio.create_task(receive)
    try:
        await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            code = sending.result()
            await socket.send(Exited(code=code if code >= 0 else 128 - code))
        else:
            receiving.result()
    finally:
        sending.cancel()
        receiving.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)


async def _send_outputs(socket: AttachedSocket, program: Program) -> int:
    """Send all output, and return the exit code. Raises SandboxLost."""

    async def send(channel: int) -> None:
        while data := await program.read(channel):
            await socket.send_data(channel, data)
            await asyncio.sleep(0)  # other work of this process goes on during a flood of output

    await asyncio.gather(*map(send, program.outputs))
    return await program.ended


async def _receive(socket: AttachedSocket, received: Received, program: Program) -> None:
    """Read the client's messages until the client is gone. Raises BadRequest.

    Input waits here until the program reads it, at most a window of it. So the other messages never wait for input.
    """
    ended = False
    typed: asyncio.Queue[bytes | None] = asyncio.Queue()
    async with running(_write_input(socket, program, typed)):
        async for message in received:
            match message:
                case (channel, data) if channel == STDIN and not ended:
                    typed.put_nowait(data)
                case EndInput() if not ended:
                    ended = True
                    typed.put_nowait(None)
                case WindowSize(rows=rows, columns=columns):
                    program.resize(rows, columns)
                case SendSignal(number=number):
                    await program.signal(number)


async def _send_turns(socket: AttachedSocket, run: LeaseRun, start: Start) -> int:
    """Send each turn when it is new, and again when its tools have answered; send what a command prints, if asked to."""
    sent: list[Turn] = []
    position = 0
    while True:
        last = run.over or run.stage is Stage.EVAL or not start.follow
        turns = await run.turns()
        for index, turn in enumerate(turns):
            if index >= len(sent) or sent[index] != turn:
                line = json.dumps({"index": index, "turn": turn.model_dump(mode="json")})
                await socket.send_data(STDOUT, line.encode() + b"\n")
        sent = turns
        if start.output:
            with contextlib.suppress(SandboxLost):
                text, position = await run.printed(position)
                if text:
                    text = text if start.follow else shorten(text)
                    await socket.send_data(STDOUT, json.dumps({"output": text}).encode() + b"\n")
        if last:
            return 0
        await asyncio.sleep(TURNS_SECONDS)


async def _ignore(received: Received) -> None:
    """Read the client's acknowledgements until the client is gone."""
    async for _ in received:
        pass


async def _write_input(socket: AttachedSocket, program: Program, typed: asyncio.Queue[bytes | None]) -> None:
    while (data := await typed.get()) is not None:
        await program.write(data)
        await socket.acknowledge(STDIN, len(data))
    program.end_input()
