"""Sessions of outside agents go on after a restart of the server, as if it had not been."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from rollyard.core.errors import Unavailable
from rollyard.gateway.external.external_sessions import ExternalSessions
from rollyard.store.session_tables import SessionTables
from rollyard.trajectory.session import SessionRecord
from tests.support.outside_api import QUESTION, Api, Serve, client, messages
from tests.support.until import until

Opened = dict[str, Any]


def at(api: Api, opened: Opened) -> Opened:
    """The session at the address of the present server, which has another port in these tests."""
    root = f"{api.url}/gateway/s/{opened['id']}"
    return {**opened, "base_url": f"{root}/v1", "anthropic_base_url": root}


async def say(opened: Opened, said: list[Any], **more: Any) -> str:
    async with client(opened) as ai:
        answer = await ai.chat.completions.create(model="m", messages=said, **more)
    return answer.choices[0].message.content or ""


def without_clock(record: SessionRecord) -> Any:
    told = record.model_dump()
    for name in ("endpoint", "expires_in_idle"):
        del told["session"][name]
    return told


async def test_a_session_goes_on_with_its_key_after_a_restart(serving: Serve, saying: Any) -> None:
    said: list[Any] = list(QUESTION)
    async with saying("One.", "Two.", "Three.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            opened, closed = await api.open(id="mine", max_calls=3), await api.open(id="closed")
            said += [{"role": "assistant", "content": await say(opened, said)}, {"role": "user", "content": "And?"}]
            await say(closed, QUESTION)
            before = [await api.record("mine"), await api.record("closed", close=True)]
        async with serving() as api:
            assert api.index.counts() == {"e": 1}, "an open session counts before its endpoint is there"
            status, listed = await api.ask("GET", "/v1/sessions")
            assert [(one["id"], one["calls"], one["state"]) for one in listed["sessions"]] == [
                ("mine", 1, "Open"),
                ("closed", 1, "Closed"),
            ]
            assert [without_clock(await api.record(id)) for id in ("mine", "closed")] == [
                without_clock(one) for one in before
            ]
            status, again = await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "mine", "max_calls": 3})
            assert (status, again["key"]) == (200, opened["key"])
            call = asyncio.create_task(say(at(api, opened), said))
            await until(lambda: api.gateway_session("mine").in_flight)  # it waits for an endpoint
            api.serve("late", upstream.url)
            said += [{"role": "assistant", "content": await call}, {"role": "user", "content": "More?"}]
            assert api.index.counts() == {"late": 1}
        async with serving() as api:
            api.serve("e", upstream.url)
            body = {"model": "m", "max_tokens": 9, "system": said[0]["content"], "messages": said[1:]}
            assert (await messages(at(api, opened)["anthropic_base_url"], opened["key"], body))[0] == 200
            with pytest.raises(openai.PermissionDeniedError, match="has made its 3 model calls"):
                await say(at(api, opened), said)
            record = await api.record("mine", close=True)
            assert (len(record.trajectory.segments), record.trajectory.breaks) == (1, {})
            own = [upstream.prompts[number] for number in (0, 2, 3)]
            assert [turn.prompt_length for turn in record.trajectory.turns] == [len(prompt) for prompt in own]
            assert record.trajectory.segments[0].token_ids[: len(own[-1])] == own[-1]
            assert (await api.ask("DELETE", "/v1/sessions/closed"))[0] == 200
        async with serving() as api:
            assert {s.id: s.open for s in api.sessions.all("default")} == {"mine": False}
            assert (await api.ask("GET", "/v1/sessions/closed"))[0] == 410


async def test_the_time_without_use_goes_on_after_a_restart(serving: Serve, saying: Any) -> None:
    async with saying("Twelve.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            opened = await api.open(id="mine", idle_seconds=1000)
            (found,) = api.sessions.all("default")
            found.last_used, api.gateway_session("mine").last_used = (found.last_used - 999.5,) * 2
        async with serving() as api:
            await until(lambda: not api.sessions.all("default"))
            with pytest.raises(openai.APIStatusError, match="not used for 1000 s"):
                await say(at(api, opened), QUESTION)


async def test_an_answer_that_did_not_arrive_is_given_again_and_sampled_once(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, stuck = asyncio.Event(), asyncio.Event()
    real = SessionTables.append

    async def append(self: SessionTables, *args: Any) -> None:
        await real(self, *args)
        stored.set()
        await stuck.wait()

    async with saying("One.", "Two.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            opened = await api.open(id="mine", max_calls=3)
            for streamed in (False, True):
                monkeypatch.setattr(SessionTables, "append", append)
                call = asyncio.create_task(say_all(opened, QUESTION, stream=streamed))
                await stored.wait()  # the turn is on disk, the caller has not got it
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await until(lambda: api.gateway_session("mine")._answered.any_to_repeat)
                monkeypatch.setattr(SessionTables, "append", real)
                stored.clear()
                assert await say_all(opened, QUESTION, stream=not streamed) == ("Two." if streamed else "One.")
            # the third answer is on disk when the server ends, which noted no delivery
            monkeypatch.setattr(ExternalSessions, "_note", lambda self: asyncio.sleep(0))
            said = [*QUESTION, {"role": "assistant", "content": "One."}, {"role": "user", "content": "And?"}]
            assert await say(opened, said) == "One."
        monkeypatch.undo()
        async with serving() as api:
            api.serve("e", upstream.url)
            assert await say_all(at(api, opened), said, stream=True) == "One."
            assert len(upstream.prompts) == 3
            with pytest.raises(openai.PermissionDeniedError, match="has made its 3 model calls"):
                await say(at(api, opened), said)  # after that it is another call
            assert (await api.record("mine")).session.calls == len(upstream.prompts) == 3


async def say_all(opened: Opened, said: list[Any], *, stream: bool) -> str:
    if not stream:
        return await say(opened, said)
    async with client(opened) as ai:
        chunks = await ai.chat.completions.create(model="m", messages=said, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in chunks])


async def test_a_call_that_cannot_be_stored_is_refused_and_nothing_is_lost(
    serving: Serve, saying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise Unavailable("nothing was stored: disk full")

    async with saying("One.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            opened = await api.open(id="mine")
            with monkeypatch.context() as patch:
                patch.setattr(SessionTables, "append", fail)
                with pytest.raises(openai.InternalServerError, match="disk full; repeat the call"):
                    await say(opened, QUESTION)
                patch.setattr(SessionTables, "add", fail)
                assert (await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "other"}))[0] == 503
            assert await say(opened, QUESTION) == "One."
        async with serving() as api:
            assert [(s.id, s.view().calls) for s in api.sessions.all("default")] == [("mine", 1)]
            assert len((await api.record("mine")).trajectory.turns) == len(upstream.prompts) == 1


async def test_a_call_in_flight_when_the_server_stops_is_told_to_come_again(serving: Serve, saying: Any) -> None:
    async with saying("Twelve.", pace=30.0).serving() as upstream, serving() as api:
        api.serve("e", upstream.url)
        opened = await api.open()
        call = asyncio.create_task(say(opened, QUESTION))
        await until(lambda: upstream.running)
        api.sessions.end_calls()
        with pytest.raises(openai.InternalServerError, match="the server is stopping; repeat the call"):
            await call


@pytest.mark.long
async def test_two_hundred_sessions_are_all_there(serving: Serve, saying: Any) -> None:
    async with saying("One.", "Two.", "Three.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            ids = [f"s{number}" for number in range(200)]

            async def converse(id: str) -> Opened:
                opened, said = await api.open(id=id), list(QUESTION)
                for _ in range(2):
                    said += [{"role": "assistant", "content": await say(opened, said)}, {"role": "user", "content": id}]
                return opened

            opened = [
                one for start in range(0, 200, 20) for one in await asyncio.gather(*map(converse, ids[start:][:20]))
            ]
            before = [without_clock(await api.record(id)) for id in ids]
        async with serving() as api:
            assert [without_clock(await api.record(id)) for id in ids] == before
            assert {one["key"] for one in opened} == {
                (await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": id}))[1]["key"] for id in ids
            }
