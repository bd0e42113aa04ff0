"""Answers about evaluations that take seconds and much memory if there are many tasks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rollyard.kinds.base import WireModel

R = TypeVar("R")
MAX_KEPT_BYTES = 32 << 20
"""Greatest size of all answers that are kept."""


class EvaluationAnswers:
    """Makes one answer at a time, in a thread of its own: many callers delay each other, and nobody else. Answers are kept, so
    that callers who ask again and again get the same one until the evaluation has more results."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "evaluations")
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    async def get(self, key: str, read: Callable[[], Awaitable[R]], make: Callable[[R], WireModel]) -> bytes:
        """Return the answer as JSON. `key`: everything that it follows from. `read`: reads the results; `make` makes the
        answer."""
        async with self._one:
            if (kept := self._kept.get(key)) is None:
                results = await read()
                loop = asyncio.get_running_loop()
                kept = await loop.run_in_executor(self._thread, lambda: make(results).model_dump_json().encode())
                self._kept[key] = kept
            self._kept.move_to_end(key)
            while sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
                self._kept.popitem(last=False)
        return kept
