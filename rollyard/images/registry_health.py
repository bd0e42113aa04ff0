"""Registries that do not answer. Nobody asks such a registry for images; one probe at a time finds out when it answers again.

A failed request alone says nothing about other images of the registry. So the registry itself is asked (`GET /v2/`): any
answer below 500 means that it works.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollyard.core.errors import ImageUnavailable
from rollyard.kinds.values.image_reference import RegistryImage

FIRST_SECONDS, CAP_SECONDS = 5.0, 60.0
"""Delay after the first probe that failed, which doubles, and its bound."""

Probe = Callable[[], Awaitable[str | None]]
"""Returns why the registry does not answer; None if it does."""


@dataclass(frozen=True)
class _Down:
    why: str
    failures: int
    until: float
    """Time of the next probe, by the event loop's clock."""


class RegistryHealth:
    def __init__(self) -> None:
        self._down: dict[str, _Down] = {}
        self._probing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self, image: RegistryImage, probe: Probe) -> None:
        """Raises ImageUnavailable if the image's registry does not answer. When the delay is over, it is probed first."""
        if image.host in self._down:
            await self.after_failure(image, probe)

    async def after_failure(self, image: RegistryImage, probe: Probe) -> None:
        """Find out whether the registry answers at all, unless that is known. Raises ImageUnavailable if it does not."""
        if (down := await self._found(image, probe)) is not None:
            why = f"{down.why}; its images wait until it answers"
            raise ImageUnavailable(image.text, why, registry_down=True)

    async def _found(self, image: RegistryImage, probe: Probe) -> _Down | None:
        now = asyncio.get_running_loop().time
        async with self._probing[image.host]:
            down = self._down.get(image.host)
            if down is not None and now() < down.until:
                return down
            why = await probe()
            if why is None:
                self._down.pop(image.host, None)
                return None
            failures = 1 if down is None else down.failures + 1
            delay = min(CAP_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
            self._down[image.host] = _Down(why, failures, now() + delay)
            return self._down[image.host]
