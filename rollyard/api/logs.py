"""Route to the output of an allocation's job: standard output and error together.

The output is kept until the ended allocation is removed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from rollyard.api import query_parameters
from rollyard.api.long_responses import mark_long_lived
from rollyard.api.object_writes import BASE
from rollyard.api.query_parameters import accepts
from rollyard.api.services import SERVICES
from rollyard.core.errors import NotFound
from rollyard.kinds.allocation import LOG_OFFSET, Allocation

CHUNK = 64 << 10
POLL_SECONDS = 0.3
MAX_TAIL_BYTES = 4 << 20


def routes() -> list[web.RouteDef]:
    return [web.get(f"{BASE}/namespaces/{{namespace}}/allocations/{{name}}/log", _log)]


@accepts("follow", "offset", "tail")
async def _log(request: web.Request) -> web.StreamResponse:
    """Send the output from byte `offset`, or its last `tail` lines.

    With `follow=1` the response begins when the job's output file exists, and ends with the job.
    """
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    follow, offset, tail = (
        query_parameters.flag(request, "follow"),
        _number(request, "offset"),
        _number(request, "tail"),
    )
    path = request.app[SERVICES].log_file(namespace, name)
    mark_long_lived(request)
    await _wait_for_output(request, path, follow)
    position = offset or 0
    if offset is None and tail is not None:
        position = await asyncio.to_thread(_tail_start, path, tail)
    headers = {"Content-Type": "text/plain; charset=utf-8", LOG_OFFSET: str(position)}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    while True:
        # The job's end is checked before the read, so that the last read comes after the end and gets all output.
        over = not follow or await _is_finished(request)
        while data := await asyncio.to_thread(_read, path, position):
            await response.write(data)
            position += len(data)
        if over:
            return response
        await asyncio.sleep(POLL_SECONDS)


async def _wait_for_output(request: web.Request, path: Path, follow: bool) -> None:
    """Wait until the job's output file exists.

    Raises NotFound with the reason if the file does not exist and the job has ended or `follow` is false. Raises
    NotFound too if the allocation is gone.
    """
    while not await asyncio.to_thread(path.is_file):
        allocation = await _allocation(request)
        if not follow or allocation.status.is_ended:
            raise NotFound(_why_no_output(allocation))
        await asyncio.sleep(POLL_SECONDS)


async def _allocation(request: web.Request) -> Allocation:
    info = request.match_info
    key = Allocation.key_of(info["namespace"], info["name"])
    return await request.app[SERVICES].store.objects.get(key, Allocation)


async def _is_finished(request: web.Request) -> bool:
    try:
        return (await _allocation(request)).status.is_ended
    except NotFound:
        return True


def _why_no_output(allocation: Allocation) -> str:
    name, status = allocation.metadata.name, allocation.status
    if status.is_ended:
        why = f": {status.reason}" if status.reason else ""
        return f"allocation {name!r} printed nothing: job {status.job_id} ended {status.job_state}{why}"
    if status.job_state is None:
        return f"allocation {name!r} has no output yet: Slurm's queue does not have its job yet"
    why = f" {status.waiting_reason}" if status.waiting_reason else ""
    return f"allocation {name!r} has no output yet: job {status.job_id} is {status.job_state}{why}; `-f` waits for it"


def _number(request: web.Request, name: str) -> int | None:
    return query_parameters.integer(request, name, 0) if request.query.get(name) else None


def _read(path: Path, position: int) -> bytes:
    """Return a piece of the file; empty at the file's end and for a missing file."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(CHUNK)
    except FileNotFoundError:
        return b""


def _tail_start(path: Path, lines: int) -> int:
    """Return the position of the last `lines` lines. Only the last `MAX_TAIL_BYTES` bytes are searched."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - MAX_TAIL_BYTES))
        data = file.read(min(size, MAX_TAIL_BYTES))
    kept = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
    return size - len(kept)
