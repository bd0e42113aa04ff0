"""Bodies of requests. They are read after the check of the token, within limits of time and size."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from aiohttp import hdrs, web
from pydantic_core import from_json

from rollyard.core.errors import BadRequest, RequestTimeout, TooLarge
from rollyard.core.http_body import encoding_of, inflate, send_continue

T = TypeVar("T")
IDLE_SECONDS = 30.0
"""Seconds without a byte after which reading ends with an error."""
LEAST_SECONDS, LEAST_BYTES_A_SECOND = 120.0, 16 << 10
"""Time that each body has, and the speed at which it has to arrive beyond: large bodies share a limit of memory, and two of
them that arrive byte by byte would keep all others waiting."""
MAX_MESSAGE_BYTES = 256 << 10
"""Greatest size of a body that `read_message` reads."""
SHORT_BYTES = 8 << 10
MAX_VALUES = 20_000
"""Greatest number of values in a JSON body, or in one line of a dataset, that the server's own process parses. The
number is estimated: commas and opening brackets are counted, also those in strings.

There are two reasons for the limit. An empty list takes two bytes in the text and eighty in memory. The call that parses
the text holds the interpreter's lock, so all other threads wait until the call returns.
"""
_MAYBE_HUGE = re.compile(rb"[eE]\+?\d{3}|(?<!\d)\d{309}")
"""Matches some other text, and each number above the range of a float. `from_json` parses such a number as infinity."""
# Only one thread, because with more threads the event loop would get the interpreter's lock less often.
_PARSER_THREAD = ThreadPoolExecutor(1, "bodies")


async def read(request: web.Request, most: int) -> bytearray:
    """Read and decompress the body.

    Raises BadRequest, RequestTimeout, UnsupportedMediaType, and TooLarge above `most` bytes.
    """
    encoding = encoding_of(request.headers.get(hdrs.CONTENT_ENCODING))
    if (request.content_length or 0) > most:
        raise _too_large_error(most)
    await send_continue(request)
    data = await _read_within_limits(request, most)
    return await asyncio.to_thread(inflate, data, encoding, most) if encoding is not None else data


async def read_message(request: web.Request) -> Any:
    """Read a short body as JSON. Raises the errors of `read` and `parse`."""
    return parse(await read(request, MAX_MESSAGE_BYTES))


async def _read_within_limits(request: web.Request, most: int) -> bytearray:
    data, loop = bytearray(), asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                chunk = await request.content.readany()
        except TimeoutError:
            raise RequestTimeout(f"no part of the body arrived for {IDLE_SECONDS:g} s; send it again") from None
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        if not chunk:
            return data
        data += chunk
        if len(data) > most:
            raise _too_large_error(most)
        if len(data) < (loop.time() - began - LEAST_SECONDS) * LEAST_BYTES_A_SECOND:
            raise RequestTimeout(
                f"the body arrives too slowly: {len(data)} bytes in {loop.time() - began:.0f} s; send it again"
            )


def _too_large_error(most: int) -> TooLarge:
    return TooLarge(f"the request body has more than the {most} bytes that are allowed here")


def parse(data: bytearray) -> Any:
    """Parse JSON within bounds: at most 201 levels, no unpaired surrogate, no `NaN` or `Infinity`.

    Raises BadRequest, and TooLarge above MAX_VALUES values.
    """
    if not has_few_values(data):
        raise TooLarge(f"the body has more than the {MAX_VALUES} values that are allowed")
    try:
        return load_json(data)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None


def load_json(data: bytes | bytearray) -> Any:
    """Parse JSON: at most 201 levels, no unpaired surrogate, no `NaN` or `Infinity`, no number above the range of a float.

    Raises ValueError.
    """
    value = from_json(data, allow_inf_nan=False)
    if _MAYBE_HUGE.search(data) and _has_infinity(value):
        raise ValueError("a number is above the range of a 64-bit float, whose largest is about 1.8e308")
    return value


def _has_infinity(value: Any) -> bool:
    if isinstance(value, float):
        return math.isinf(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_infinity, parts))


def has_few_values(data: bytes | bytearray) -> bool:
    """Whether the data has at most `MAX_VALUES` values."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") <= MAX_VALUES


def is_short(request: web.Request) -> bool:
    """Whether the body is so short that its parsing takes less time than passing the body to a thread.

    False for a compressed body and for one of unknown size.
    """
    size = request.content_length
    return size is not None and size <= SHORT_BYTES and hdrs.CONTENT_ENCODING not in request.headers


async def run_in_parser_thread(work: Callable[..., T], *args: Any) -> T:
    """Run `work(*args)` in the parser thread, and return the result.

    The event loop waits only while a single call, such as the parsing of JSON, holds the interpreter's lock.
    """
    return await asyncio.get_running_loop().run_in_executor(_PARSER_THREAD, partial(work, *args))
