"""Kept sandboxes: bounded in number and time, and gone when the node agent drains."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.node.kept_sandboxes import KeptSandboxes
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.wire.node import LeaseRef
from tests.support.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ONE, TWO = (LeaseRef(namespace="default", id=id, fence=1) for id in ("one", "two"))


async def test_there_is_a_bound_of_number_and_time(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    changes: list[int] = []
    kept = KeptSandboxes(1, lambda: changes.append(len(kept)))
    first = await sandboxes.start(spec)
    async with await sandboxes.start(spec) as second:
        assert kept.keep(ONE, first, 0.3)
        assert not kept.keep(TWO, second, 600), "there is room for one"
        await until(lambda: not kept)
        assert not first.alive
        assert kept.get(ONE.key) is None
        assert kept.keep(TWO, second, 600)
        (report,) = kept.reports()
        assert report.lease == TWO
        await kept.close()
        assert not second.alive
        assert changes == [1, 0, 1, 0]
    async with await sandboxes.start(spec) as third:
        assert not kept.keep(ONE, third, 600), "after a drain nothing is kept"


async def test_a_sandbox_that_ends_by_itself_leaves_its_place(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    kept = KeptSandboxes(1, lambda: None)
    dead = await sandboxes.start(spec)
    await dead.close()
    assert not kept.keep(ONE, dead, 600)
    dying = await sandboxes.start(spec)
    assert kept.keep(ONE, dying, 600)
    await asyncio.sleep(0)
    await dying.close()
    await until(lambda: not kept)
