"""Parser of server-sent events, with a time limit for each piece of data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pydantic_core import from_json


async def events(content: aiohttp.StreamReader, first_seconds: float, next_seconds: float) -> AsyncIterator[Any]:
    """Yield the JSON of each `data:` line except `[DONE]`.

    The body is read to its end, because a connection is reused only after that. Lines are split here, because the first
    chunk repeats the prompt's ids and can exceed the limit of aiohttp's `readline`, 128 KiB. Raises TimeoutError if no
    data comes for `first_seconds`, or for `next_seconds` after the first event, and ValueError if a line is not JSON.
    """
    rest, seconds = b"", first_seconds
    while True:
        async with asyncio.timeout(seconds):
            data = await content.readany()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                seconds = next_seconds
                text = line[5:].strip()
                if text != b"[DONE]":
                    yield from_json(text)
        if not data:
            return
