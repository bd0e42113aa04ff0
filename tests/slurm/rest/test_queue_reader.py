"""Large queues: read in a child that costs a look at most, and is gone when the driver is, however that ended."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.base import JobListing
from rollyard.slurm.process_identity import start_time
from rollyard.slurm.rest import queue_reader
from rollyard.slurm.rest.address import SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.codec_v38 import OldCodec
from rollyard.slurm.rest.queue_reader import SMALL_BYTES, QueueReader
from rollyard.slurm.rest.rest_driver import RestDriver
from tests.support.until import until

OPENAPI = b'{"paths": {"/slurm/v0.0.38/jobs": {}}}'


def record(id: int, user: str, name: str, **more: Any) -> dict[str, Any]:
    """As v0.0.38 has it."""
    empty = dict.fromkeys(("array_job_id", "submit_time", "start_time", "end_time", "restart_cnt", "exit_code"), 0)
    texts = {"comment": "c", "state_reason": "None", "nodes": "", "array_task_string": "", "job_state": "PENDING"}
    return {**empty, **texts, "job_id": id, "user_name": user, "name": name, **more}


def queue(strangers: int, *ours: dict[str, Any], **more: Any) -> bytes:
    theirs = [record(n, "somebody", "train") for n in range(100, 100 + strangers)]
    return json.dumps({"jobs": [*theirs, *ours], "errors": [], **more}).encode()


OURS = record(7, getpass.getuser(), "rollyard-t-0")
LARGE, SMALL = queue(2000, OURS), queue(3, OURS)
assert len(SMALL) < SMALL_BYTES < len(LARGE)


class Restd:
    """Answers every look with the same body."""

    def __init__(self, socket: Path) -> None:
        self.body = LARGE
        self.read = 0
        """Number of answers that drivers have read to their end."""
        self.address = SlurmrestdAddress.parse(f"unix:{socket}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        body = OPENAPI if b"/openapi/v3" in asked else self.body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read()  # until the driver hangs up
        self.read += 1
        writer.close()


@pytest.fixture
async def restd(tmp_path: Path) -> AsyncIterator[Restd]:
    made = Restd(tmp_path / "s")
    async with await asyncio.start_unix_server(made.serve, tmp_path / "s"):
        yield made


@pytest.fixture
async def driver(restd: Restd) -> AsyncIterator[RestDriver]:
    made = RestDriver(restd.address, SlurmCredentials())
    yield made
    await made.close()
    assert children() == []


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Children of drivers that other tests hold open are none of these tests' business."""
    OTHERS.update(children())
    yield
    OTHERS.clear()


OTHERS: set[int] = set()


def children(parent: int | None = None) -> list[int]:
    """Those of this process, or another, that read queues."""
    found = []
    for path in Path(f"/proc/{parent or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child may end
            for pid in {*map(int, path.read_text().split())} - OTHERS:
                found += [pid] if b"reader_child" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    return found


async def test_a_large_queue_is_read_by_one_child_and_a_small_one_by_none(restd: Restd, driver: RestDriver) -> None:
    restd.body = SMALL
    small = (await driver.list_jobs()).jobs
    assert children() == []
    restd.body = LARGE
    assert (await driver.list_jobs()).jobs == small
    [child] = children()
    assert list(small) == list((await driver.list_jobs()).jobs) == ["7"]
    assert children() == [child]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>" + b" " * SMALL_BYTES, "answered 200 to /slurm/v0.0.38/jobs/: '<html>'"),
        (queue(2000, {**OURS, "array_job_id": 6, "array_task_string": "1,3,..."}), "SLURM_BITSTR_LEN=0"),
        (queue(2000, {"user_name": "x"}, {"user_name": getpass.getuser()}), "cannot be read: KeyError: 'name'"),
        (queue(2000, OURS, errors=[{"error": "busy", "error_number": 5}]), "slurmrestd: busy"),
    ],
)
async def test_a_large_answer_that_is_none_is_refused_as_a_small_one_is(
    restd: Restd, driver: RestDriver, body: bytes, words: str
) -> None:
    restd.body = body
    with pytest.raises(SlurmUnreachable) as caught:
        await driver.list_jobs()
    assert words in str(caught.value)
    restd.body = LARGE
    assert list((await driver.list_jobs()).jobs) == ["7"]


async def look_that_waits(restd: Restd, driver: RestDriver) -> tuple[int, asyncio.Task[JobListing]]:
    """Return a frozen child, and the look whose answer it was given."""
    await driver.list_jobs()
    [child] = children()
    os.kill(child, signal.SIGSTOP)
    before = restd.read
    look = asyncio.create_task(driver.list_jobs())
    await until(lambda: restd.read > before)  # the driver passes an answer on as soon as it has read it
    return child, look


async def test_a_child_that_dies_costs_a_look_at_most_and_is_made_anew(restd: Restd, driver: RestDriver) -> None:
    child, look = await look_that_waits(restd, driver)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(SlurmUnreachable, match="has ended"):
        await look
    assert list((await driver.list_jobs()).jobs) == ["7"]
    assert children() != [child]


async def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "COMMAND", ("bash", "-c", "exec -a reader_child sleep 1000"))
    reader = QueueReader(0.01)
    with pytest.raises(SlurmUnreachable, match=r"not read within 0.01 s"):
        await reader.queue(OldCodec("v0.0.38"), LARGE, "me")
    assert children() == []
    await reader.close()


async def test_a_look_that_is_given_up_leaves_nothing_for_the_next(restd: Restd, driver: RestDriver) -> None:
    child, look = await look_that_waits(restd, driver)
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert start_time(child) is None
    assert list((await driver.list_jobs()).jobs) == ["7"]


SERVER = """
import asyncio, sys
from rollyard.slurm.rest.address import SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.codec_v38 import OldCodec
from rollyard.slurm.rest.rest_driver import RestDriver

async def main():
    await RestDriver(SlurmrestdAddress.parse(sys.argv[1]), SlurmCredentials()).list_jobs()
    print("read", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_child_of_a_server_that_was_killed_ends_too(restd: Restd) -> None:
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, f"unix:{restd.address.socket}", stdout=pipe
    )
    try:
        assert server.stdout is not None
        assert await server.stdout.readline() == b"read\n"
        [child] = children(server.pid)
    finally:
        server.kill()
        await server.wait()
    await until(lambda: start_time(child) is None)
