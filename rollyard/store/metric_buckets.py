"""Buckets of metrics: the values of one pool or endpoint over a span of time. Pure.

A sample is a bucket of the finest resolution. Coarser buckets are made from finer ones, never from an older version of
themselves, so making a bucket again changes nothing. A value that nobody knew is None, never 0. A span without a sample
has no bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

DIGITS = 7
"""Significant digits of stored values."""


class Resolution(NamedTuple):
    """Buckets of one width, in seconds, and the seconds for which they are kept. `number`: the table's name for them."""

    number: int
    step: int
    kept: int


HOUR, DAY = 3600, 86_400
POOLS = (Resolution(0, 10, HOUR), Resolution(1, 60, DAY), Resolution(2, 600, 31 * DAY))
"""Resolutions of pools, the finest first. The step of each divides the step of the next."""
ENDPOINTS = (Resolution(3, 10, HOUR), Resolution(4, 60, DAY), Resolution(5, 600, 3 * DAY))
"""Resolutions of endpoints. An endpoint is as short-lived as its Slurm job."""


class Measure(NamedTuple):
    """One metric in a bucket: mean and greatest of the known values, and their number."""

    mean: float
    greatest: float
    known: int


@dataclass(frozen=True, slots=True)
class Bucket:
    samples: int
    measures: tuple[Measure | None, ...]
    """In the order of the metrics of the bucket's owner. None: no sample knew the value."""
    text: str = ""
    """Last known text, such as a weights version."""


def sample(values: Iterable[float | None], text: str = "") -> Bucket:
    """Return the bucket of one sample."""
    return Bucket(1, tuple(None if v is None else Measure(v, v, 1) for v in values), text)


def start_of(time: float, step: int) -> int:
    """Return the start of the bucket in which a time (Unix seconds) lies."""
    return int(time // step) * step


def roll_up(buckets: Sequence[Bucket]) -> Bucket:
    """Return one bucket for the whole span of these buckets, which are in order of time."""
    columns = zip_longest(*(bucket.measures for bucket in buckets))
    text = next((bucket.text for bucket in reversed(buckets) if bucket.text), "")
    return Bucket(sum(bucket.samples for bucket in buckets), tuple(map(_joined, columns)), text)


def roll_up_rows(rows: Iterable[tuple[int, Bucket]], step: int) -> list[tuple[int, Bucket]]:
    """Return the buckets of width `step` that these buckets (start, bucket) fill. The rows are in order of time."""
    spans: dict[int, list[Bucket]] = {}
    for start, bucket in rows:
        spans.setdefault(start_of(start, step), []).append(bucket)
    return [(start, roll_up(buckets)) for start, buckets in spans.items()]


def _joined(measures: Iterable[Measure | None]) -> Measure | None:
    known = [m for m in measures if m is not None]
    count = sum(m.known for m in known)
    if not count:
        return None
    return Measure(sum(m.mean * m.known for m in known) / count, max(m.greatest for m in known), count)


def encode(bucket: Bucket) -> str:
    """Return a bucket as JSON: the number of samples, the text, and the measures. A measure is `mean` where all samples had
    this value, else [mean, greatest], or [mean, greatest, known] where a sample did not know it."""
    measures = [_shortest(m, bucket.samples) for m in bucket.measures]
    while measures and measures[-1] is None:
        measures.pop()
    return json.dumps([bucket.samples, bucket.text, *measures], separators=(",", ":"))


def decode(text: str) -> Bucket:
    samples, label, *measures = json.loads(text)
    return Bucket(samples, tuple(_measure(m, samples) for m in measures), label)


def _shortest(measure: Measure | None, samples: int) -> object:
    if measure is None:
        return None
    mean, greatest = _rounded(measure.mean), _rounded(measure.greatest)
    if measure.known < samples:
        return [mean, greatest, measure.known]
    return mean if mean == greatest else [mean, greatest]


def _measure(stored: float | list[float] | None, samples: int) -> Measure | None:
    if stored is None:
        return None
    if isinstance(stored, list):
        mean, greatest, *known = stored
        return Measure(mean, greatest, int(known[0]) if known else samples)
    return Measure(stored, stored, samples)


def _rounded(value: float) -> float:
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
