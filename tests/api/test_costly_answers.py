"""Turns for costly answers: callers take turns, and whoever asks for little waits for nobody."""

from __future__ import annotations

import asyncio
import sys

import pytest

from rollyard.api import costly_answers
from rollyard.api.costly_answers import _TURNS, Turns
from rollyard.core.errors import Unavailable
from tests.api.conftest import serving  # noqa: F401
from tests.api.test_rollouts_waiting import pool, submit
from tests.support.outside_api import Serve
from tests.support.until import until


async def hold(turns: Turns, caller: str, order: list[str]) -> None:
    async with turns.take(caller):
        order.append(caller)
        await asyncio.sleep(0)


async def test_callers_take_turns() -> None:
    turns, order = Turns(1), list[str]()
    async with asyncio.TaskGroup() as tasks:
        for caller in ("many", "many", "many", "many", "few", "other", "few"):
            tasks.create_task(hold(turns, caller, order))
    assert order == ["many", "many", "few", "other", "many", "few", "many"]


async def test_threads_give_the_interpreter_back_sooner_while_costly_answers_are_made() -> None:
    turns, usual = Turns(2), sys.getswitchinterval()
    async with turns.take("a"):
        async with turns.take("b"):
            assert sys.getswitchinterval() == pytest.approx(costly_answers.SWITCH_SECONDS)
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == usual


async def test_a_caller_with_too_many_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costly_answers, "MOST_WAITING_OF_CALLER", 2)
    turns, order = Turns(1), list[str]()
    async with asyncio.TaskGroup() as tasks, turns.take("a"):
        waiting = [tasks.create_task(hold(turns, "a", order)) for _ in range(2)]
        await until(lambda: turns.waiting == 2)
        with pytest.raises(Unavailable, match="2 costly requests of this caller wait already") as refused:
            await hold(turns, "a", order)
        assert refused.value.retry_after in range(2, 11)
        waiting[0].cancel()
        await until(lambda: turns.waiting == 1)
        tasks.create_task(hold(turns, "b", order))
        tasks.create_task(hold(turns, "a", order))
    assert order == ["a", "b", "a"]
    async with turns.take("a"):
        pass  # all turns have come back


async def test_a_caller_that_goes_as_its_turn_comes_passes_it_on() -> None:
    turns, order = Turns(1), list[str]()
    async with turns.take("a"):
        gone = asyncio.create_task(hold(turns, "a", order))
        await until(lambda: turns.waiting == 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await asyncio.wait_for(hold(turns, "b", order), 60)
    assert order == ["b"]


async def test_a_turn_lasts_until_the_answer_is_made_also_if_its_caller_leaves() -> None:
    turns, order, made = Turns(1), list[str](), asyncio.Event()
    left = asyncio.create_task(turns.make("a", made.wait))
    other = asyncio.create_task(hold(turns, "b", order))
    await until(lambda: turns.waiting == 1)
    left.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (left.done(), turns.waiting) == (False, 1)
    made.set()
    await asyncio.wait_for(other, 60)
    assert (left.cancelled(), order) == (True, ["b"])


async def test_a_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costly_answers, "WAIT_SECONDS", 0.01)
    turns, order = Turns(1), list[str]()
    async with turns.take("a"):
        with pytest.raises(Unavailable, match="the server was busy with other costly requests"):
            await hold(turns, "a", order)
        assert turns.waiting == 0
    await hold(turns, "a", order)
    assert order == ["a"]


async def test_little_waits_for_no_turn_and_much_is_refused_in_a_sentence(
    serving: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costly = ("/v1/rollouts?prefix=r", "/v1/rollouts?total=true", "/v1/rollouts/summary", "/v1/rollouts/profile",
              "/v1/evaluations", "/v1/usage", "/v1/nodes", "/v1/rollouts/losses", "/v1/allocations/history",
              "/v1/rollouts")  # fmt: skip
    async with serving() as api:
        await pool(api)
        await submit(api, "r")
        turns = api.app[_TURNS]
        async with turns.take("x"), turns.take("y"):
            asked = [asyncio.create_task(api.ask("GET", path)) for path in costly]
            await until(lambda: turns.waiting == len(costly))
            for path in ("/healthz", "/v1/rollouts?limit=100", "/v1/rollouts?limit=9&status=Queued", "/v1/rollouts/r"):
                assert (await api.ask("GET", path))[0] == 200
            await submit(api, "s")
            monkeypatch.setattr(costly_answers, "MOST_WAITING_OF_CALLER", len(costly))
            async with api.http.get(f"{api.url}/v1/usage") as refused:
                assert (refused.status, int(refused.headers["Retry-After"]) in range(2, 11)) == (503, True)
                assert "costly requests of this caller wait already" in (await refused.json())["message"]
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * len(costly)
