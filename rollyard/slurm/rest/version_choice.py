"""Chooses the version of slurmrestd's API from the OpenAPI description that slurmrestd serves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.core.errors import SlurmUnreachable
from rollyard.slurm.rest.codec import Body, Codec
from rollyard.slurm.rest.codec_v38 import OldCodec
from rollyard.slurm.rest.codec_v40 import NewCodec

OLDEST, FIRST_OF_NOW, LAST_TRIED = 38, 40, 45
"""Supported versions: v0.0.38 (Slurm 22.05 to 23.11), and v0.0.40 or later (from Slurm 23.11 on). The newest tested
version is v0.0.45 (Slurm 26.05).

v0.0.39 has other bodies and is not supported. Each slurmrestd that serves v0.0.39 also serves a supported version.
"""


@dataclass(frozen=True)
class RestVersions:
    codec: Codec
    accounting: str | None
    """Version in the path of queries to slurmdbd; None if slurmrestd does not serve them."""


def negotiate(openapi: Body) -> RestVersions:
    """Choose the versions. Raises SlurmUnreachable if slurmrestd serves no supported version, and one of
    `queue_reader.FAULTS` for a malformed description."""
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
    """Return the newest served version up to LAST_TRIED. If there is none, return the oldest later version.

    Return None if no supported version is served.
    """
    spoken = {v for v in served if v == OLDEST or v >= FIRST_OF_NOW}
    tried = {v for v in spoken if v <= LAST_TRIED}
    return max(tried) if tried else min(spoken, default=None)
