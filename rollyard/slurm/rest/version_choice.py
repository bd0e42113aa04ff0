"""Choice of the body versions for a server, by the description that the server gives of itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.rest.codec import Body, Codec
from rollyard.slurm.rest.codec_v38 import OldCodec
from rollyard.slurm.rest.codec_v40 import NewCodec

OLDEST, FIRST_OF_NOW, LAST_TRIED = 38, 40, 45
"""Supported versions: Slurm 22.05 has v0.0.38, 26.05 has v0.0.45. v0.0.39 has a third form, and never occurs alone."""


@dataclass(frozen=True)
class RestVersions:
    codec: Codec
    accounting: str | None
    """Version of slurmdbd's part; None if the site keeps no accounting, or if slurmrestd does not serve it."""


def negotiate(openapi: Body) -> RestVersions:
    """Choose by the server's own description. Raises SlurmUnreachable if it serves no version that we support."""
    paths = list(openapi["paths"])
    served = _served(paths, r"/slurm/v0\.0\.(\d+)/jobs/?")
    version = _best(served)
    if version is None:
        there = ", ".join(f"v0.0.{v}" for v in sorted(served)) or "no version of slurmctld's API"
        raise SlurmUnreachable(
            f"slurmrestd serves {there}; Rollyard supports v0.0.{OLDEST} and v0.0.{FIRST_OF_NOW} or later; use --cluster cli"
        )
    name = f"v0.0.{version}"
    accounted = version in _served(paths, r"/slurmdb/v0\.0\.(\d+)/job/\{job_id\}/?")
    if version == OLDEST:
        return RestVersions(OldCodec(name), name if accounted else None)
    schema = openapi.get("components", {}).get("schemas", {}).get(f"{name}_job_desc_msg", {})
    return RestVersions(
        NewCodec(name, frozenset(schema["properties"]) if "properties" in schema else None), name if accounted else None
    )


def _served(paths: Iterable[str], pattern: str) -> set[int]:
    return {int(found[1]) for path in paths if (found := re.fullmatch(pattern, path))}


def _best(served: Iterable[int]) -> int | None:
    """Return the newest tested version, else the first version after it."""
    spoken = {v for v in served if v == OLDEST or v >= FIRST_OF_NOW}
    tried = {v for v in spoken if v <= LAST_TRIED}
    return max(tried) if tried else min(spoken, default=None)
