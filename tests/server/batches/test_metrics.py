"""The metrics of batches agree with what the batches say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rollyard.api.metrics import batch_metrics
from rollyard.core.errors import Unavailable
from rollyard.core.telemetry import REGISTRY
from rollyard.kinds.batch import BatchKey
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import BatchRecord, LengthSums
from rollyard.store.blobs import PackWriter
from tests.server.batches.conftest import Site
from tests.support.played_pool import Played


def read(text: str) -> dict[str, float]:
    """Metric, or metric and the value of its last label -> value."""
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {"/".join([s.name.removeprefix("rollyard_"), *list(s.labels.values())[-1:]]): s.value for s in samples}


def counters() -> dict[str, float]:
    return read(generate_latest(REGISTRY).decode())


async def test_tokens_staleness_and_time_to_target_are_counted_once(site: Site) -> None:
    def play(record: RolloutRecord) -> Played:
        site.clock.turn(1.0)
        wasted = record.group == "d-g1"
        return Played(reward=1.0 if wasted else float(record.sample_index), tokens=7 if wasted else 10)

    before = counters()
    await site.dataset("d", 50)
    await site.create(id="a", dataset={"name": "d"}, target=2)
    await site.pool.play(play)
    await site.create(id="b", dataset={"name": "d"}, target=1)
    await site.pool.play(play)
    first, second = await site.view("a"), await site.view("b")
    after = counters()

    def counted(name: str) -> float:
        return round(after[name] - before.get(name, 0.0), 6)

    assert counted("batch_tokens_total/delivered") == first.delivered_tokens + second.delivered_tokens == 3 * 2 * 10
    assert counted("batch_tokens_total/wasted") == first.wasted_tokens + second.wasted_tokens == 2 * 7
    assert (first.staleness_mean, second.staleness_mean) == (0.0, 1.0), "its group was carried over"
    assert (counted("batch_staleness_steps_count"), counted("batch_staleness_steps_sum")) == (3, 1)
    assert first.seconds_to_target is not None
    assert second.seconds_to_target is not None
    assert counted("batch_seconds_to_target_count") == 2
    assert counted("batch_seconds_to_target_sum") == first.seconds_to_target + second.seconds_to_target
    assert counted("batch_groups_total/informative") == 3


async def test_tokens_of_a_cancelled_group_are_wasted(site: Site) -> None:
    before = counters().get("batch_tokens_total/wasted", 0.0)
    await site.dataset("d", 50)
    await site.create(id="b", dataset={"name": "d"}, target=1, carry_over="cancel")
    half, *group = await site.pool.lease(3)
    await site.pool.finish(group[-1], Played(reward=1.0))
    for reward, record in enumerate([half, group[0]]):
        await site.pool.finish(record, Played(reward=float(reward)))
    view = await site.view("b")
    assert (view.delivered, view.wasted_tokens) == (1, 10)
    assert counters()["batch_tokens_total/wasted"] - before == 10


async def test_a_commit_that_fails_is_neither_counted_nor_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: PackWriter) -> None:
        raise OSError(28, "No space left on device")

    told: list[BatchKey] = []
    site.parts.settlements.batch_changed.connect(told.append)
    await site.dataset("d", 50)
    before = counters()
    with monkeypatch.context() as patch:
        patch.setattr(PackWriter, "sync", full)
        with pytest.raises(Unavailable):
            await site.create(id="b", dataset={"name": "d"}, target=1)
    assert (counters(), told) == (before, [])
    await site.create(id="b", dataset={"name": "d"}, target=1)
    drawn = "batch_groups_total/drawn"
    assert counters()[drawn] - before.get(drawn, 0.0) == (await site.view("b")).drawn > 0
    assert told == [BatchKey("default", "b")]


def test_the_bias_of_a_pool_is_that_of_all_its_running_batches() -> None:
    batch = BatchRecord("default", "b", "", "", "swe", "d", 100.0)
    early = replace(
        batch, whole_lengths=LengthSums(40, 4000, 40, 40.0), delivered_lengths=LengthSums(20, 1000, 20, 10.0)
    )
    found = read(batch_metrics([early, early]))
    assert {of: found[f"batches_bias/{of}"] for of in ("tokens", "turns", "seconds")} == {
        "tokens": 0.5,
        "turns": 1.0,
        "seconds": 0.5,
    }
    assert "batches_bias/tokens" not in read(batch_metrics([batch])), "unknown is not 0"
