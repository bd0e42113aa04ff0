"""Sizes and walltimes as Slurm and Kubernetes users write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_SIZE = re.compile(r"^(\d+)(K|M|G|T)?i?B?$", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?$")


def size_bytes(text: str) -> int:
    """Return the bytes: `8G` -> 8589934592. Units are binary, as in Slurm's --mem. A number without a unit is in bytes;
    Slurm would read it as megabytes."""
    match = _SIZE.match(text)
    if not match:
        raise ValueError("write a size such as 512M, 8G or 1T")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def walltime_seconds(text: str) -> int:
    """Return the seconds of Slurm's `MM`, `MM:SS`, `HH:MM:SS` or `D-HH[:MM[:SS]]` (man sbatch, --time)."""
    match = _TIME.match(text)
    if not match:
        raise ValueError('write a walltime such as "08:00:00", "30:00" or "2-12:00:00", in quotes')
    days, parts = match[1], [int(p) for p in match.groups()[1:] if p is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 1:  # MM
        hours, minutes, seconds = 0, parts[0], 0
    elif len(parts) == 2:  # MM:SS
        hours, minutes, seconds = 0, parts[0], parts[1]
    else:
        hours, minutes, seconds = parts
    if seconds > 59 or (minutes > 59 and (hours or len(parts) == 3)) or (days is not None and hours > 23):
        raise ValueError("write at most 59 minutes and seconds below an hour, and at most 23 hours below a day")
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def walltime_text(seconds: int) -> str:
    """Return the walltime as `[D-]HH:MM:SS`."""
    days, rest = divmod(seconds, 86_400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def _check_size(text: str) -> str:
    size_bytes(text)
    return text


def _check_walltime(text: str) -> str:
    if walltime_seconds(text) == 0:
        raise ValueError('must be longer than zero; write for example "00:30:00"')
    return text


Size = Annotated[str, AfterValidator(_check_size)]
Walltime = Annotated[str, AfterValidator(_check_walltime)]
