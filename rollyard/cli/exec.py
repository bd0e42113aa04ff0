"""`rollyard exec`: a command in the sandbox of a running rollout, with this terminal, or with this process's pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import termios
import threading
import tty
from collections.abc import Coroutine, Iterator
from typing import Any

import click

from rollyard.cli.options import with_client
from rollyard.client.async_client import AsyncClient
from rollyard.client.attachment import Attachment
from rollyard.core.aio import running
from rollyard.core.errors import RollyardError
from rollyard.wire.attach import CHUNK, STDERR, AttachKind, Start

FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that the program in the sandbox gets. On a terminal, Ctrl-C is a character, and this process gets no signal. The
closing of a terminal (SIGHUP) ends this process, and the program with it."""


@click.command(name="exec")
@click.option("-i", "--stdin", "with_stdin", is_flag=True, help="pass standard input to the command")
@click.option("-t", "--tty", "with_tty", is_flag=True, help="give the command a terminal")
@click.option(
    "--eval",
    "in_eval",
    is_flag=True,
    help="also in EVAL, whose sandbox has the hidden tests; a change there changes the reward",
)
@click.argument("rollout")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_client
async def exec_(
    client: AsyncClient,
    namespace: str,
    with_stdin: bool,
    with_tty: bool,
    in_eval: bool,
    rollout: str,
    command: tuple[str, ...],
) -> None:
    """Run a command in the sandbox of a running rollout, or of a failed one that is kept.

    For a shell: rollyard exec -it ROLLOUT -- bash. The exit code is the command's. The rollout's history says that
    somebody ran the command. When this process ends, the command ends too. When the rollout leaves its sandbox, the
    command ends with a sentence.
    """
    if with_tty and not sys.stdin.isatty():
        raise click.UsageError(
            "-t needs a terminal as standard input; leave out -t, and write -i to pass a pipe or a file"
        )
    rows, columns = _terminal_size() if with_tty else (24, 80)
    start = Start(
        kind=AttachKind.EXEC,
        command=list(command),
        tty=with_tty,
        rows=rows,
        columns=columns,
        term=os.environ.get("TERM", "") if with_tty else "",
        eval=in_eval,
    )
    async with client.attach(rollout, start, namespace) as attached:
        with _raw_terminal() if with_tty else contextlib.nullcontext(), _signals(attached, with_tty) as ended_by:
            try:
                async with running(_send_input(attached, with_stdin)):
                    await _print_output(attached)
            except asyncio.CancelledError:
                if not ended_by:
                    raise
                sys.exit(128 + ended_by[0])
    sys.exit(attached.code)


async def _print_output(attached: Attachment) -> None:
    """Print the output of the program until it ends. A stopped terminal stops only the output: pings of the server are
    still answered. Raises ApiError; RollyardError if the output cannot be printed."""
    loop = asyncio.get_running_loop()
    pieces: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()  # bounded by the window of the attachment
    printed: asyncio.Queue[tuple[int, bytes] | OSError | None] = asyncio.Queue()

    def print_pieces() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while (piece := pieces.get()) is not None:
                    _print(*piece)
                    loop.call_soon_threadsafe(printed.put_nowait, piece)
                loop.call_soon_threadsafe(printed.put_nowait, None)
            except OSError as error:
                loop.call_soon_threadsafe(printed.put_nowait, error)

    async def receive() -> None:
        try:
            async for piece in attached.output():
                pieces.put(piece)
        finally:
            pieces.put(None)

    # A thread of its own, because a write to a pipe that nobody reads must not hold up the end of this process.
    threading.Thread(target=print_pieces, daemon=True).start()
    async with running(receive()) as receiving:
        while (piece := await printed.get()) is not None:
            if isinstance(piece, BrokenPipeError):
                sys.exit(128 + signal.SIGPIPE)  # the reader has enough, as `head` does
            if isinstance(piece, OSError):
                raise RollyardError(f"the output cannot be written here: {piece.strerror}; the command is ended")
            with contextlib.suppress(ConnectionError):  # the program may have ended, and the connection with it
                await attached.used(*piece)
        await receiving


def _print(channel: int, data: bytes) -> None:
    fd, view = 2 if channel == STDERR else 1, memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def _send_input(attached: Attachment, with_stdin: bool) -> None:
    """Send standard input until its end. A thread reads, because standard input may be a file, a pipe or a terminal."""
    if not with_stdin:
        await attached.end_input()
        return
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(2)

    def read() -> None:
        data = b"x"
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while data:
                room.acquire()
                try:
                    data = os.read(0, CHUNK)
                except OSError as error:
                    data = b""
                    click.echo(f"standard input cannot be read: {error.strerror}; the command gets its end", err=True)
                loop.call_soon_threadsafe(pieces.put_nowait, data)

    threading.Thread(target=read, daemon=True).start()
    while data := await pieces.get():
        await attached.write(data)
        room.release()
    await attached.end_input()


def _terminal_size() -> tuple[int, int]:
    size = os.get_terminal_size(0)
    return max(1, min(size.lines, 1000)), max(1, min(size.columns, 1000))


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Pass every key to the sandbox's terminal."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # keys that were typed meanwhile are kept
    try:
        yield
    finally:
        termios.tcsetattr(
            0, termios.TCSANOW, before
        )  # a wait for the output would last while nobody reads the terminal


@contextlib.contextmanager
def _signals(attached: Attachment, with_tty: bool) -> Iterator[list[int]]:
    """Pass signals to the program; a second one ends this process. With a terminal, the first one ends this process in
    order, so that the terminal is restored. Yield a list, which gets the number of the signal that ends this process."""
    loop, tasks, this = asyncio.get_running_loop(), set[asyncio.Task[None]](), asyncio.current_task()
    assert this is not None
    ended_by: list[int] = []
    passed: list[int] = []

    def begin(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(_finished)
        task.add_done_callback(tasks.discard)

    def signalled(number: int) -> None:
        if with_tty or passed:
            ended_by.append(number)
            this.cancel()
        else:
            passed.append(number)
            begin(attached.signal(number))

    for number in FORWARDED:
        loop.add_signal_handler(number, signalled, number)
    if with_tty:
        loop.add_signal_handler(signal.SIGWINCH, lambda: begin(attached.resize(*_terminal_size())))
    try:
        yield ended_by
    finally:
        for number in (*FORWARDED, signal.SIGWINCH):
            loop.remove_signal_handler(number)


def _finished(task: asyncio.Task[None]) -> None:
    """Mark an error as read: if the connection is lost, the output ends with a sentence."""
    if not task.cancelled():
        task.exception()
