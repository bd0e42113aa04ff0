"""Changes of a `MissingImage`, and when an image is tried again. Pure.

The back-off belongs to the image, not to its rollouts. Until its delay ends, none of its rollouts is granted. Then
one rollout is granted, which tries the image; the others wait for the outcome.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import replace

from rollyard.core.clock import as_text
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.values.image_reference import registry_host
from rollyard.store.base import MissingImage
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
NOW = "now"
"""`next_try` of an image that is tried."""


def failed(missing: MissingImage | None, pool: PoolKey, fault: ImageFault, now: float) -> MissingImage:
    """Return the missing image after a failed pull. Failures of several node agents at about the same time count once."""
    missing = missing or MissingImage(pool, fault.image)
    seen = replace(
        missing,
        message=fault.message,
        permanent=fault.permanent,
        registry_down=fault.registry_down and registry_host(fault.image) is not None,
        since=missing.since or now,
    )
    if missing.failures and not missing.trying and now < missing.until:
        return seen
    failures = missing.failures + 1
    return replace(
        seen, failures=failures, until=now + backoff(fault.image, failures, permanent=fault.permanent), trying=False
    )


def pulling(missing: MissingImage | None, pool: PoolKey, image: str, now: float) -> MissingImage:
    """Return the missing image after a node agent reported that it pulls the image."""
    missing = missing or MissingImage(pool, image)
    return replace(missing, until=max(missing.until, now + PULL_SECONDS), trying=True)


def freed(missing: MissingImage, ready: Collection[str], now: float) -> MissingImage | None:
    """Return the missing image after these images became ready, if that changes it: an image that waits for its registry is
    tried at once when another image of the registry is there."""
    host = registry_host(missing.image)
    if not missing.registry_down or missing.until <= now or host not in {registry_host(image) for image in ready}:
        return None
    return replace(missing, until=now)


def tried(missing: MissingImage, now: float) -> MissingImage:
    """Return the missing image after a rollout was granted that tries the image."""
    return replace(missing, until=now + TRY_SECONDS, trying=True)


def is_tried(missing: MissingImage, now: float) -> bool:
    """Return whether a node agent pulls the image now, or was asked to."""
    return missing.trying and missing.until > now


def next_try(missing: MissingImage, now: float, *, needed: bool, default: bool = False) -> str:
    """Return when the image is tried again, as the end of a sentence. `needed`: whether a queued rollout of the pool needs it.
    `default`: whether it is the pool's default image, which nodes also try without a rollout."""
    if is_tried(missing, now):
        return NOW
    if needed:
        return f"at {as_text(missing.until)}" if missing.until > now else "as soon as a node has room"
    return "when a rollout needs it" + (", or a node looks for the pool's default image" if default else "")


def backoff(image: str, failures: int, *, permanent: bool) -> float:
    """Seconds to wait after a failure. A hash shortens the delay by up to a quarter."""
    cap = PERMANENT_CAP_SECONDS if permanent else CAP_SECONDS
    full = min(cap, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    return full * (0.75 + zlib.crc32(f"{image}/{failures}".encode()) / 2**34)
