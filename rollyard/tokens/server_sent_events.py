"""Parses the server-sent events of a byte stream, with a limit on the wait for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pydantic_core import from_json


async def events(content: aiohttp.StreamReader, first_seconds: float, next_seconds: float) -> AsyncIterator[Any]:
    """Yield the JSON of each `data:` line up to the end of the body: only a fully read connection can be reused.

    Lines are split here because aiohttp's readline has a limit of 128 KiB, and the first chunk repeats the prompt's
    ids. Raises TimeoutError, and ValueError if a line is not JSON.
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
