"""Uploads that wait for the same path share a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rollyard.core.errors import ApiError, Fenced, Unavailable
from rollyard.node.upload_queue import MAX_BYTES, UploadQueue


class Path:
    """Takes requests, and answers them once `answer` is set."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.answer = asyncio.Event()
        self.errors: dict[bytes, ApiError] = {}
        self.failure: ApiError | None = None

    async def send(self, uploads: Sequence[bytes]) -> list[ApiError | None]:
        self.requests.append(list(uploads))
        await self.answer.wait()
        if self.failure is not None:
            raise self.failure
        return [self.errors.get(upload) for upload in uploads]


async def begin(queue: UploadQueue, *uploads: bytes, most: int = 10) -> list[asyncio.Task[None]]:
    """Start the uploads; the first has then been sent."""
    tasks = [asyncio.create_task(queue.put(upload, most)) for upload in uploads]
    await asyncio.sleep(0)
    return tasks


async def test_uploads_gather_while_a_request_is_under_way() -> None:
    path = Path()
    tasks = await begin(UploadQueue(path.send), b"a", b"b", b"c", b"d", most=2)
    path.answer.set()
    await asyncio.gather(*tasks)
    assert path.requests == [[b"a"], [b"b", b"c"], [b"d"]]


async def test_a_request_has_a_limit_of_bytes() -> None:
    path, large = Path(), b"x" * (MAX_BYTES - 1)
    tasks = await begin(UploadQueue(path.send), b"a", large, large, b"d")
    path.answer.set()
    await asyncio.gather(*tasks)
    assert path.requests == [[b"a"], [large, large], [b"d"]]


async def test_an_error_concerns_its_own_upload_only() -> None:
    path = Path()
    path.errors[b"b"] = Fenced("void")
    tasks = await begin(UploadQueue(path.send), b"a", b"b", b"c")
    path.answer.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ended] == [type(None), Fenced, type(None)]
    assert path.requests == [[b"a"], [b"b", b"c"]]


async def test_a_failed_request_fails_all_its_uploads() -> None:
    path = Path()
    path.failure = Unavailable("no server")
    tasks = await begin(UploadQueue(path.send), b"a", b"b", b"c")
    path.answer.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ended] == [Unavailable] * 3
    assert path.requests == [[b"a"], [b"b", b"c"]]


async def test_a_cancelled_sender_leaves_the_others_to_the_next() -> None:
    path = Path()
    first, second, third = await begin(UploadQueue(path.send), b"a", b"b", b"c")
    for sender in (first, second):
        sender.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sender
    path.answer.set()
    await third
    assert path.requests == [[b"a"], [b"b", b"c"], [b"c"]]
