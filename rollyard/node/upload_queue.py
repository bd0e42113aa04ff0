"""Queue of uploads for one path. While a request is under way, further uploads wait, and the next request takes them
together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rollyard.core.errors import ApiError

MAX_BYTES = 512 << 10
"""When the uploads of a request have this many bytes together, no further upload is added to the request."""
Send = Callable[[Sequence[bytes]], Awaitable[Sequence[ApiError | None]]]
"""Function that sends uploads in one request. It returns an error or None for each upload, or raises the error of the
request."""


class UploadQueue:
    """Sends uploads one request at a time. One of the waiting callers sends the uploads of the others too, so no task
    is needed in the background."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._waiting: dict[asyncio.Future[None], bytes] = {}

    async def put(self, data: bytes, most: int) -> None:
        """Send one upload, alone or together with others. Raises the error of the upload or the request.

        `most`: greatest number of uploads in a request of this call. Another caller may send this upload in its own
        request, where the `most` of that caller applies.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[done] = data
        try:
            async with self._turn:
                while not done.done():
                    await self._send_waiting(most)
            done.result()
        finally:
            self._waiting.pop(done, None)

    async def _send_waiting(self, most: int) -> None:
        """Send the first waiting uploads, and set their results. If this call is cancelled, the uploads of other
        callers stay in the queue."""
        taken: list[asyncio.Future[None]] = []
        size = 0
        for done, data in self._waiting.items():
            if len(taken) >= most or size >= MAX_BYTES:
                break
            taken.append(done)
            size += len(data)
        errors: Sequence[ApiError | None]
        try:
            errors = await self._send([self._waiting[done] for done in taken])
        except ApiError as failure:
            errors = [failure] * len(taken)
        for done, error in zip(taken, errors, strict=True):
            if self._waiting.pop(done, None) is None:
                continue  # its caller was cancelled
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
