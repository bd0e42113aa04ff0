"""Changes of an `ImageHold`: when an image is tried again. Pure.

The back-off belongs to the image, not to its rollouts. While an image is held, none of its rollouts is granted. When the
hold ends, one rollout is granted, which tries the image; the others wait for the outcome.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import replace

from rollyard.kinds.pool import PoolKey
from rollyard.store.base import ImageHold
from rollyard.wire.node import ImageFault

FIRST_SECONDS = 5.0
"""Delay after the first failure. It doubles with each failure."""
CAP_SECONDS, PERMANENT_CAP_SECONDS = 120.0, 600.0
"""Greatest delay: of a fault that may pass by itself, and of one that somebody must repair."""
TRY_SECONDS = 30.0
"""Seconds after which another rollout tries the image, if the first one has no outcome yet. A node agent reports earlier
that it still pulls."""
PULL_SECONDS = 60.0
"""Seconds after which another rollout tries the image, if a node agent that pulls it has not reported the outcome."""


def failed(hold: ImageHold | None, pool: PoolKey, fault: ImageFault, now: float) -> ImageHold:
    """Return the hold after a failed pull. Failures of several node agents at about the same time count once."""
    hold = hold or ImageHold(pool, fault.image)
    seen = replace(
        hold,
        message=fault.message,
        permanent=fault.permanent,
        registry_down=_registry_down(fault),
        since=hold.since or now,
    )
    if hold.failures and not hold.trying and now < hold.until:
        return seen
    failures = hold.failures + 1
    return replace(
        seen, failures=failures, until=now + backoff(fault.image, failures, permanent=fault.permanent), trying=False
    )


def pulling(hold: ImageHold | None, pool: PoolKey, image: str, now: float) -> ImageHold:
    """Return the hold after a node agent reported that it pulls the image."""
    hold = hold or ImageHold(pool, image)
    return replace(hold, until=max(hold.until, now + PULL_SECONDS), trying=True)


def freed(hold: ImageHold, ready: Collection[str], now: float) -> ImageHold | None:
    """Return the hold after these images became ready, if that changes it: an image that waits for its registry is tried at
    once when another image of the registry is there."""
    host = _host(hold.image)
    if not hold.registry_down or hold.until <= now or host not in {_host(image) for image in ready}:
        return None
    return replace(hold, until=now)


def _registry_down(fault: ImageFault) -> bool:
    """Whether the image waits for its registry."""
    return fault.registry_down and fault.image.startswith(_OF_REGISTRY)


_OF_REGISTRY = "docker://"


def _host(image: str) -> str:
    return image.removeprefix(_OF_REGISTRY).partition("/")[0]


def tried(hold: ImageHold, now: float) -> ImageHold:
    """Return the hold after a rollout was granted that tries the image."""
    return replace(hold, until=now + TRY_SECONDS, trying=True)


def backoff(image: str, failures: int, *, permanent: bool) -> float:
    """Seconds to wait after a failure. A hash shortens the delay by up to a quarter."""
    cap = PERMANENT_CAP_SECONDS if permanent else CAP_SECONDS
    full = min(cap, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    return full * (0.75 + zlib.crc32(f"{image}/{failures}".encode()) / 2**34)
