"""Task source plug-ins: read ahead, stored once, and refused with their own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.batch import BatchKey, BatchStatus, SourceRef
from rollyard.server.batches.service import READ_AHEAD
from rollyard.server.batches.task_sources import TaskSources
from tests.server.batches.conftest import Site
from tests.support.played_pool import Played


class Counting:
    """Tasks 0, 1, 2 ... up to `end`, each of which may be asked for once only."""

    asked: list[int] = []

    def __init__(self, end: int | None = None, broken_at: int | None = None) -> None:
        self._end, self._broken_at = end, broken_at

    def task(self, index: int) -> Mapping[str, Any] | None:
        if index == self._broken_at:
            raise RuntimeError("no more disk")
        if self._end is not None and index >= self._end:
            return None
        self.asked.append(index)
        return {"kind": "math", "problem": f"{index}?", "answer": str(index)}


@pytest.fixture
def plugged(site: Site) -> Site:
    Counting.asked = []
    site.batches._sources = TaskSources(lambda: {"counting": lambda: Counting})
    return site


async def test_an_endless_source_is_read_ahead_and_never_twice(plugged: Site) -> None:
    await plugged.declare_pool()
    for number in range(2):
        id = f"b{number}"
        source = {"name": "counting", "options": {"end": None}}
        await plugged.create(id=id, source=source, series="s", target=150, filter={"kind": "none"})
        while not (await plugged.view(id)).status.terminal:
            await plugged.pool.play(lambda record: Played())
            await plugged.parts.batch_keeper.tick()
    seen = [
        group.task_index
        for number in range(2)
        for group in await plugged.store.batches.delivered(BatchKey("default", f"b{number}"), 0, 1000)
    ]
    assert sorted(seen) == list(range(300))
    assert Counting.asked == list(range(len(Counting.asked))), "each once, in order"
    assert len(Counting.asked) <= 300 + 2 * READ_AHEAD


async def test_a_source_that_ends_completes_the_batch(plugged: Site) -> None:
    await plugged.declare_pool()
    await plugged.create(
        id="b", source={"name": "counting", "options": {"end": 300}}, filter={"kind": "none"}, step_groups=400
    )
    for _ in range(10):
        await plugged.pool.play(lambda record: Played())
        await plugged.parts.batch_keeper.tick()
    view = await plugged.view("b")
    assert (view.delivered, view.drained) == (300, True)
    assert (await plugged.batches.acknowledge(BatchKey("default", "b"), 300)).status is BatchStatus.COMPLETED


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"name": "nonesuch"}, "no such plug-in; installed ones: counting"),
        ({"name": "counting", "options": {"nonesuch": 1}}, "it cannot be opened: TypeError"),
        ({"name": "counting", "options": {"end": 0}}, "has no task; change its options"),
        ({"name": "counting", "options": {"broken_at": 7}}, r"task\(7\) failed: RuntimeError: no more disk"),
    ],
)
async def test_what_is_wrong_with_a_source_is_said_at_once(plugged: Site, source: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        await plugged.create(id="b", source=source, target=1)


async def test_a_task_of_no_kind_is_refused() -> None:
    class Wrong:
        def task(self, index: int) -> Mapping[str, Any]:
            return {"kind": "math", "problem": "?"}

    sources = TaskSources(lambda: {"wrong": lambda: Wrong})
    with pytest.raises(Invalid, match=r"task\(0\) returned no valid task: .*answer"):
        await sources.read(SourceRef(name="wrong"), 0, 1)


async def test_a_source_that_fails_later_says_so_in_the_batch_and_is_asked_again(plugged: Site) -> None:
    await plugged.declare_pool()
    source = {"name": "counting", "options": {"broken_at": READ_AHEAD + 10}}
    await plugged.create(id="b", source=source, filter={"kind": "none"}, in_flight=8, step_groups=1000)
    await plugged.pool.play(lambda record: Played())
    for _ in range(3):
        await plugged.parts.batch_keeper.tick()
        await plugged.pool.play(lambda record: Played())
    waiting = (await plugged.view("b")).waiting
    assert waiting is not None
    assert "no more disk" in waiting
