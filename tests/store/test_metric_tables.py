"""Metrics over time: what is read is what a naive mean of all samples gives, whatever happens in between."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from rollyard.store import metric_tables, tables
from rollyard.store.blobs import PackWriter
from rollyard.store.metric_buckets import (
    ENDPOINTS,
    POOLS,
    Bucket,
    Measure,
    Resolution,
    decode,
    encode,
    sample,
    start_of,
)
from rollyard.store.metric_tables import BucketRange, StoredDecision, TrackKey
from rollyard.store.store import Store
from rollyard.store.writer import WriteUnit

POOL = TrackKey("RolloutPool", "default", "swe")
ENDPOINT = TrackKey("InferencePool", "default", "policy", "default/policy-ip-0")
BEGIN = 1_700_000_000
Taken = dict[int, tuple[float | None, ...]]
"""Start of a 10 s bucket -> values of its last sample."""


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[WriteUnit]:
    with closing(sqlite3.connect(tmp_path / "rollyard.db", isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        tables.prepare(db)
        yield WriteUnit(db, PackWriter(tmp_path, 1))


def naive(taken: Taken, span: BucketRange) -> dict[int, Bucket]:
    found = {}
    for start in range(span.since, span.until, span.step):
        rows = [values for at, values in taken.items() if start <= at < start + span.step]
        if rows:
            columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
            measures = [Measure(sum(c) / len(c), max(c), len(c)) if c else None for c in columns]
            found[start] = Bucket(len(rows), tuple(measures))
    return found


def same(found: dict[int, Bucket], expected: dict[int, Bucket]) -> None:
    assert found.keys() == expected.keys()
    for start, bucket in expected.items():
        assert found[start].samples == bucket.samples
        for measure, other in zip(_padded(found[start], 3), bucket.measures, strict=True):
            assert (measure and measure.known) == (other and other.known)
            if measure is not None:
                assert measure[:2] == pytest.approx(other[:2], rel=1e-5, abs=1e-9)


def _padded(bucket: Bucket, width: int) -> Sequence[Measure | None]:
    return [*bucket.measures, *[None] * (width - len(bucket.measures))]


@pytest.mark.parametrize("seed", range(3))
async def test_any_series_with_gaps_restarts_and_failed_writes_reads_as_its_naive_means(
    tmp_path: Path, seed: int
) -> None:
    chance, now, taken = random.Random(seed), float(BEGIN), Taken()
    store = await Store.open(tmp_path)
    while now < BEGIN + 2 * 3600:
        now += chance.choice([10, 10, 10, 10, 10, 3, 20, 1500 if chance.random() < 0.02 else 10])
        values = tuple(chance.choice([None, 0, chance.random(), chance.randrange(10**6)]) for _ in range(3))
        if chance.random() < 0.05:
            with pytest.raises(ZeroDivisionError):
                await store.objects._writer.call(partial(_torn, now, values))
            continue
        await store.metrics.record(now, [(POOL, sample(values)), (ENDPOINT, sample(values))])
        taken[start_of(now, 10)] = values
        if chance.random() < 0.005:
            await store.close()
            store = await Store.open(tmp_path)
    for key, resolutions in ((POOL, POOLS), (ENDPOINT, ENDPOINTS)):
        for one in resolutions:
            for step in (one.step, one.step * 2, one.step * 7):
                span = BucketRange(start_of(max(BEGIN, now - one.kept), step) + step, start_of(now, step) + step, step)
                (rows,) = await store.metrics.read([key], span)
                same(dict(rows), naive(taken, span))
    await store.close()


def _torn(now: float, values: Sequence[float | None], unit: WriteUnit) -> None:
    """Fail after everything of a sample is written."""
    metric_tables._record(now, [(POOL, sample(values))], [], unit)
    raise ZeroDivisionError


def test_a_bucket_reads_as_it_was_written_and_a_constant_is_short() -> None:
    bucket = Bucket(6, (Measure(1.5, 3, 6), None, Measure(2, 2, 4), Measure(7, 7, 6), None), "v7")
    assert decode(encode(bucket)) == Bucket(6, bucket.measures[:-1], "v7")
    assert encode(sample([4, None, 4.0], "v7")) == '[1,"v7",4,null,4]'


async def test_after_a_night_without_a_server_the_buckets_before_it_are_made_and_the_night_is_a_gap(
    tmp_path: Path,
) -> None:
    store = await Store.open(tmp_path)
    for i in range(3):
        await store.metrics.record(BEGIN + 10 * i, [(POOL, sample([i]))])
    await store.close()
    store = await Store.open(tmp_path)
    later = BEGIN + 10 * 3600
    await store.metrics.record(later, [(POOL, sample([9]))])
    span = BucketRange(start_of(BEGIN, 60), start_of(later, 60) + 60, 60)
    (rows,) = await store.metrics.read([POOL], span)
    # The samples themselves are too old by now; the minutes that were made of them are kept.
    assert sum(bucket.samples for _, bucket in rows) == 4
    assert {start for start, _ in rows} <= {*range(start_of(BEGIN, 60), BEGIN + 60, 60), start_of(later, 60)}
    finest = BucketRange(start_of(BEGIN, 10), start_of(later, 10) + 10, 10)
    assert [start for start, _ in (await store.metrics.read([POOL], finest))[0]] == [start_of(later, 10)]
    await store.close()


async def test_decisions_are_kept_once_and_only_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_tables, "MAX_DECISIONS", 5)
    store = await Store.open(tmp_path)
    made = [StoredDecision(*POOL[:3], BEGIN + i, i, f"to {i}") for i in range(8)]
    other = StoredDecision("InferencePool", "default", "swe", BEGIN, 1, "another pool")
    for _ in range(2):
        await store.metrics.record(BEGIN + 10, [], [*made, other])
    assert await store.metrics.decisions(*POOL[:3], BEGIN, BEGIN + 100) == made[-5:]
    assert await store.metrics.decisions(*POOL[:3], BEGIN + 4, BEGIN + 6) == made[4:6]
    await store.metrics.record(BEGIN + 32 * 86_400, [], [made[0]._replace(time=BEGIN + 32 * 86_400)])
    assert len(await store.metrics.decisions(*POOL[:3], 0, 2 * BEGIN)) == 1
    await store.close()


async def test_tracks_are_bounded_and_go_when_their_last_bucket_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_tables, "MAX_TRACKS", 3)
    store = await Store.open(tmp_path)
    keys = [ENDPOINT._replace(endpoint=f"e{i}") for i in range(5)]
    await store.metrics.record(BEGIN, [(key, sample([1])) for key in keys])
    assert await store.metrics.tracks("default", "policy") == keys[:3]
    await store.metrics.record(BEGIN + 31 * 86_400 + 3 * 3600, [(POOL, sample([1]))])
    assert await store.metrics.tracks("default", "policy") == []
    assert await _rows(store) == 1
    await store.close()


async def _rows(store: Store) -> int:
    query = "SELECT count(*) FROM buckets"
    return int(await store.metrics._readers.call(lambda db: db.execute(query).fetchone()[0]))


def busy(key: TrackKey, chance: random.Random) -> Bucket:
    """A sample with as many digits as a busy pool's."""
    width = 9 if key.endpoint else 17
    return sample(
        [chance.choice([chance.randrange(5000), round(chance.random(), 3)]) for _ in range(width)], "step-1234"
    )


def fill(unit: WriteUnit, keys: Sequence[TrackKey], seconds: int) -> float:
    """Record samples for a time; return by how many bytes the database grows. Each empty table and index has a page."""
    chance, empty = random.Random(1), _pages(unit)
    unit.db.execute("BEGIN")
    for i in range(seconds // 10):
        metric_tables._record(BEGIN + 10 * i, [(key, busy(key, chance)) for key in keys], [], unit)
        if i % 8640 == 0:
            unit.db.execute("COMMIT")
            unit.db.execute("BEGIN")
    unit.db.execute("COMMIT")
    return float((_pages(unit) - empty) * 4096)


def _pages(unit: WriteUnit) -> int:
    return int(unit.db.execute("PRAGMA page_count").fetchone()[0])


def kept(resolutions: Sequence[Resolution]) -> int:
    return sum(one.kept // one.step for one in resolutions)


def test_a_month_of_a_busy_pool_costs_less_than_two_megabytes(unit: WriteUnit) -> None:
    size = fill(unit, [POOL, ENDPOINT], 3 * 3600)
    (buckets,) = unit.db.execute("SELECT count(*) FROM buckets").fetchone()
    assert size / buckets * kept(POOLS) < 2e6
    assert size / buckets * kept(ENDPOINTS) < 0.7e6


@pytest.mark.long
@pytest.mark.parametrize(("keys", "most"), [([POOL], 2.1e6), ([ENDPOINT], 0.7e6)], ids=["pool", "endpoint"])
def test_a_whole_month_sample_by_sample(unit: WriteUnit, keys: list[TrackKey], most: float) -> None:
    size = fill(unit, keys, 32 * 86_400)
    (buckets,) = unit.db.execute("SELECT count(*) FROM buckets").fetchone()
    print(f"{buckets} buckets, {size / 1e6:.2f} MB")
    assert size < most
    assert buckets <= kept(keys[0].resolutions) + 10
