"""The body of a submit. A body of up to 8 KiB is parsed on the event loop, a body of up to 1 MiB in a thread, and a
larger body, or one with very many values, in a child process.

Python parses JSON in one call and holds the interpreter's lock during the call. A body of 250 MB, half of it brackets,
would take 20 GB of memory, and stop all other work of the server for a minute, even the renewal of leases. The child
process has limits of memory and time; a body that exceeds them ends only the child.
"""

from __future__ import annotations

import asyncio
import pickle
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pydantic
from aiohttp import hdrs, web

from rollyard.api import request_bodies
from rollyard.api.error_status import rejection
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import ApiError, BadRequest, Invalid, TooLarge
from rollyard.kinds.installed_task_fields import check_tasks
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.schema.validation import MAX_REPORTED, Problem, problems_of
from rollyard.server.rollouts.new_rollouts import MAX_PER_REQUEST, MAX_TASK_BYTES, too_large

MAX_BYTES = 256 << 20
SMALL_BYTES = 1 << 20
LARGE_SECONDS = 60.0
LARGE_MEMORY = 4 << 30
"""Limit on the child process's address space, in bytes. A parsed list of numbers takes ten times as much memory as its
text."""
_LARGE = ThreadPoolExecutor(1, "large-bodies")
_LARGE_BUDGET = web.AppKey("large_budget", ByteBudget)
"""Limit on the total bytes of the large bodies that are in the server's memory at the same time."""


def set_up(app: web.Application) -> None:
    app[_LARGE_BUDGET] = ByteBudget(2 * MAX_BYTES)


async def read_requests(request: web.Request) -> list[RolloutRequest]:
    """Read one request, a list of requests, or {"rollouts": [...]}.

    Raises the errors of `request_bodies.read`, and Invalid with the paths of the first wrong fields.
    """
    size = request.content_length
    if size is None or hdrs.CONTENT_ENCODING in request.headers:
        size = MAX_BYTES
    if request_bodies.is_short(request):
        return parse(await request_bodies.read(request, MAX_BYTES))
    if size <= SMALL_BYTES:
        return await _read(await request_bodies.read(request, MAX_BYTES))
    async with request.app[_LARGE_BUDGET].reserve(min(size, MAX_BYTES)):
        return await _read(await request_bodies.read(request, MAX_BYTES))


async def _read(data: bytearray) -> list[RolloutRequest]:
    if len(data) <= SMALL_BYTES and request_bodies.has_few_values(data):
        return await request_bodies.run_in_parser_thread(parse, data)
    return await asyncio.get_running_loop().run_in_executor(_LARGE, _parse_in_process, data)


def parse(data: bytes | bytearray) -> list[RolloutRequest]:
    """Parse the requests of a body in this process."""
    try:
        body = request_bodies.load_json(data)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    above: tuple[str | int, ...] = ()
    if isinstance(body, dict) and body.keys() == {"rollouts"}:
        body, above = body["rollouts"], ("rollouts",)
    single = not isinstance(body, list)
    items = [body] if single else body
    if len(items) > MAX_PER_REQUEST:
        raise Invalid(
            f"one request may have at most {MAX_PER_REQUEST} rollouts, but this one has {len(items)}; send several"
        )
    requests: list[RolloutRequest] = []
    problems: list[Problem] = []
    for i, item in enumerate(items):
        try:
            requests.append(RolloutRequest.model_validate(item))
        except pydantic.ValidationError as error:
            place = above if single else (*above, i)
            found = problems_of(RolloutRequest, error)
            problems += [Problem((*place, *p.path), p.message, p.reason) for p in found]
        if len(problems) >= MAX_REPORTED:
            break
    if problems:
        raise rejection(problems, "the request")
    if not requests:
        raise Invalid("send at least one rollout")
    if (n := sum(r.n for r in requests)) > MAX_PER_REQUEST:
        raise Invalid(f"one request may have at most {MAX_PER_REQUEST} rollouts, but this one has {n}; send several")
    check_tasks([r.task for r in requests])
    return requests


def _parse_in_process(data: bytearray) -> list[RolloutRequest]:
    """Parse the body in a child process. Blocks."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(command, input=data, stdout=subprocess.PIPE, timeout=LARGE_SECONDS)
    except subprocess.TimeoutExpired:
        raise TooLarge(
            f"the body could not be read within {LARGE_SECONDS:g} s; send fewer rollouts at a time"
        ) from None
    if done.returncode != 0:
        raise TooLarge("the body needs more memory than one request may use; send fewer rollouts at a time")
    found = pickle.loads(done.stdout)
    if isinstance(found, ApiError):
        raise found
    requests: list[RolloutRequest] = found
    return requests


def main() -> None:
    """Read the body from standard input; write the requests, or the error, to standard output as a pickle."""
    resource.setrlimit(resource.RLIMIT_AS, (LARGE_MEMORY, LARGE_MEMORY))
    found: list[RolloutRequest] | ApiError
    try:
        found = parse(sys.stdin.buffer.read())
        for request in found:
            if (size := len(request.model_dump_json())) > MAX_TASK_BYTES:
                raise too_large(size)
    except ApiError as error:
        found = error
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    main()
