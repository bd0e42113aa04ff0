"""Events are said once and counted; that one cannot be written stops nothing."""

from __future__ import annotations

from pathlib import Path

from rollyard.controller.event_recorder import MAX_MESSAGE, EventRecorder
from rollyard.core.clock import as_datetime
from rollyard.kinds.event import Event
from rollyard.store.object_store import ObjectStore
from rollyard.store.store import Store
from tests.support.make import rollout_pool
from tests.support.manual_clock import ManualClock


async def events(store: ObjectStore) -> list[Event]:
    return [e for e in (await store.list_objects("Event"))[0] if isinstance(e, Event)]


async def test_the_same_again_moves_the_count_and_the_time(store: ObjectStore) -> None:
    clock = ManualClock()
    recorder, pool = EventRecorder(store, clock), await store.create(rollout_pool("swe"))
    await recorder.record_event(pool, "Scaled", "from 0 to 2")
    clock.turn(60)
    await recorder.record_event(pool, "Scaled", "from 0 to 2")
    (event,) = await events(store)
    assert (event.count, event.reason, event.type) == (2, "Scaled", "Normal")
    assert event.first_timestamp == as_datetime(clock.time() - 60)
    assert event.last_timestamp == as_datetime(clock.time())
    about = event.involved_object
    assert (about.kind, about.name, about.uid) == ("RolloutPool", "swe", pool.metadata.uid)


async def test_another_reason_message_or_object_is_another_event(store: ObjectStore) -> None:
    recorder = EventRecorder(store, ManualClock())
    one, two = await store.create(rollout_pool("one")), await store.create(rollout_pool("x" * 48))
    for obj, reason, message, type in (
        (one, "A", "m", "Normal"),
        (one, "B", "m", "Normal"),
        (one, "A", "n", "Normal"),
        (one, "A", "m", "Warning"),
        (two, "A", "m", "Normal"),
    ):
        await recorder.record_event(obj, reason, message, type)  # type: ignore[arg-type]
    found = await events(store)
    assert len(found) == 5
    assert {e.count for e in found} == {1}


async def test_a_long_message_is_cut(store: ObjectStore) -> None:
    pool = await store.create(rollout_pool("swe"))
    await EventRecorder(store, ManualClock()).record_event(pool, "JobEnded", "x" * 5000, "Warning")
    assert len((await events(store))[0].message) == MAX_MESSAGE


async def test_an_event_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "other")
    pool = await store.objects.create(rollout_pool("swe"))
    await store.close()
    await EventRecorder(store.objects, ManualClock()).record_event(pool, "Scaled", "from 0 to 2")
