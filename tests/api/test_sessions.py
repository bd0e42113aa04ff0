"""Sessions for agents outside of sandboxes, at the real API: their calls by the real openai client, their trajectories."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from rollyard.gateway.external import external_sessions
from rollyard.kinds.base import Reason
from rollyard.tokens import requests_in_flight
from rollyard.tokens.chat_template import ChatTemplate
from simulation.upstream import Upstream
from tests.support.outside_api import POOL, QUESTION, Serve, client, messages
from tests.support.recompute import differences
from tests.support.until import until


async def test_two_turns_are_one_segment_of_the_models_own_logprobs(serving: Serve, start_engine: Any) -> None:
    connector = aiohttp.UnixConnector(str(start_engine().socket), limit=0)
    async with serving(connector) as api:
        api.serve("e", "http://engine")
        opened = await api.open(sampling={"max_tokens": 48, "seed": 3}, id="mine")
        assert opened["base_url"] == f"{api.url}/gateway/s/mine/v1"
        assert (opened["durable"], opened["endpoint"]) == (True, "e")
        assert 0 < opened["expires_in_idle"] <= 900
        assert api.index.counts() == {"e": 1}
        messages, told = list(QUESTION), []
        async with client(opened) as ai:
            for _ in range(2):
                stream = await ai.chat.completions.create(model="any", messages=messages, stream=True)
                told.append("".join([c.choices[0].delta.content or "" async for c in stream]))
                messages += [{"role": "assistant", "content": told[-1]}, {"role": "user", "content": "Go on."}]
        record = await api.record("mine", close=True)
        assert (record.session.state, record.session.calls) == ("Closed", 2)
        assert api.index.counts() == {}
        (segment,), turns = record.trajectory.segments, record.trajectory.turns
        assert [turn.text.strip() for turn in turns] == told
        assert record.trajectory.breaks == {}
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in turns)
        assert max(differences([record.trajectory], api.model)) < 0.02
        # the answer may be lost on its way: closing again gives the same
        assert (await api.record("mine", close=True)).trajectory == record.trajectory


async def test_a_session_is_named_by_path_by_header_or_by_its_key(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Twelve.").serving() as upstream:
        api.serve("e", upstream.url)
        opened, root = await api.open(), f"{api.url}/gateway/v1"
        named = {"X-Rollyard-Session": opened["id"]}
        ways = [{}, {"base_url": root}, {"base_url": root, "api_key": api.admin, "default_headers": named}]
        for way in ways:
            async with client(opened, **way) as ai:
                said = await ai.chat.completions.create(model="m", messages=QUESTION)
                assert said.choices[0].message.content == "Twelve."
        body = {"model": "m", "max_tokens": 9, "messages": QUESTION[1:]}
        said = await messages(opened["anthropic_base_url"], opened["key"], body)
        assert said[1]["content"] == [{"type": "text", "text": "Twelve."}]
        assert (await api.record(opened["id"])).session.calls == 4


async def test_keys_open_their_own_session_and_nothing_else(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Twelve.").serving() as upstream:
        api.serve("e", upstream.url)
        one, two = await api.open(), await api.open()
        for key in ("", "nonsense", one["key"][:-2], f"session-{one['id']}"):
            async with client(one, api_key=key or "-") as ai:
                with pytest.raises(openai.AuthenticationError, match="POST /v1/sessions"):
                    await ai.chat.completions.create(model="m", messages=QUESTION)
        async with client(two, api_key=one["key"]) as ai:
            with pytest.raises(openai.PermissionDeniedError, match="this key belongs to session"):
                await ai.chat.completions.create(model="m", messages=QUESTION)
        status, told = await messages(one["anthropic_base_url"], "wrong", {})
        assert (status, told["error"]["type"]) == (401, "authentication_error")
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {one['key']}"}) as http:
            for path in (f"/v1/sessions/{one['id']}", "/v1/rollouts", "/apis"):
                async with http.get(api.url + path) as answer:
                    assert answer.status == 403
            async with http.post(f"{api.url}/gateway/v1/embeddings", json={}) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_url")
        assert upstream.prompts == []


async def test_sessions_that_are_gone_say_what_one_can_do(serving: Serve, saying: Any) -> None:
    async with saying("Twelve.").serving() as upstream:
        async with serving() as api:
            api.serve("e", upstream.url)
            closed, deleted, idle, again = [await api.open(**m) for m in ({}, {}, {"idle_seconds": 1}, {"id": "again"})]
            await api.record(closed["id"], close=True)
            status, told = await api.ask("DELETE", f"/v1/sessions/{deleted['id']}")
            assert (status, told["state"], told["calls"]) == (200, "Closed", 0)
            await until(lambda: idle["id"] not in {s.id for s in api.sessions.all("default")})
            gone = (closed, "is closed"), (deleted, "deleted"), (idle, "not used for 1 s")
            for opened, why in gone:
                await refused(opened, why)
            status, told = await api.ask("GET", f"/v1/sessions/{idle['id']}")
            assert (status, "open another" in told["message"]) == (410, True)
            assert (await api.ask("GET", "/v1/sessions/never"))[0] == 404
            assert api.index.count("e") == 1
        async with serving() as api:  # the server starts anew
            api.serve("e", upstream.url)
            for opened, why in gone:
                await refused({**opened, "base_url": f"{api.url}/gateway/s/{opened['id']}/v1"}, why)
            assert (await api.ask("DELETE", "/v1/sessions/again"))[0] == 200
            await api.open(id="again")
            again["base_url"] = f"{api.url}/gateway/s/again/v1"
            await refused(again, "session 'again' is gone")  # another one by the same name
    assert upstream.prompts == []


async def refused(opened: dict[str, Any], why: str) -> None:
    async with client(opened) as ai:
        with pytest.raises(openai.APIStatusError, match=why) as error:
            await ai.chat.completions.create(model="m", messages=QUESTION)
        assert (error.value.status_code, error.value.code) == (410, "session_gone")
        assert "POST /v1/sessions" in str(error.value)


async def test_requests_that_cannot_be_met_are_refused_in_words(serving: Serve, monkeypatch: Any, saying: Any) -> None:
    async with serving() as api:
        for body, status, word in (
            ({"pool": "nobody"}, 422, "existing ones: policy"),
            ({"pool": "policy", "sampling": {"top_p": 2}}, 422, "sampling.top_p"),
            ({"pool": "policy", "idle_seconds": 10**9}, 422, "idle_seconds"),
            ({"pool": "policy"}, 503, "no endpoint of InferencePool policy is ready and has a free place"),
        ):
            told = await api.ask("POST", "/v1/sessions", body)
            assert (told[0], word in told[1]["message"]) == (status, True), told
        async with saying("Twelve.").serving() as upstream:
            api.serve("e", upstream.url)
            first = await api.open(id="a", max_calls=3)
            status, again = await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "a", "max_calls": 3})
            assert (status, again["key"]) == (200, first["key"])
            assert (await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "a"}))[0] == 409
            monkeypatch.setattr(external_sessions, "MAX_OPEN", 1)
            assert (await api.ask("POST", "/v1/sessions", {"pool": "policy"}))[0] == 429
            monkeypatch.setattr(external_sessions, "MAX_OPEN", 256)
            async with client(first) as ai:
                await ai.chat.completions.create(model="m", messages=QUESTION)
                monkeypatch.setattr(external_sessions, "MAX_TOKENS", 10)
                with pytest.raises(openai.RateLimitError, match="have 10 tokens"):
                    await ai.chat.completions.create(model="m", messages=QUESTION)
            monkeypatch.setattr(external_sessions, "MAX_TOKENS", 4_000_000)
            monkeypatch.setattr(external_sessions, "MAX_SESSION_TOKENS", 10)
            async with client(await api.open(id="small")) as ai:
                await ai.chat.completions.create(model="m", messages=QUESTION)
                with pytest.raises(openai.PermissionDeniedError, match="reached 10 tokens"):
                    await ai.chat.completions.create(model="m", messages=QUESTION)


async def test_a_template_that_will_not_do_is_blamed_on_nobodys_conversation(
    serving: Serve, saying: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    async with serving() as api, saying("Twelve.").serving() as upstream:
        folder = api.model = shutil.copytree(api.model, tmp_path / "model")
        own, file = (folder / "chat_template.jinja").read_text(), folder / "chat_template.jinja"
        file.write_text("{% for m in messages %}{{ m.content }")
        api.serve("e", upstream.url)
        loaded: list[Path] = []
        load = ChatTemplate.load
        monkeypatch.setattr(ChatTemplate, "load", lambda folder: (loaded.append(folder), load(folder))[1])
        for _ in range(3):
            status, told = await api.ask("POST", "/v1/sessions", {"pool": "policy"})
            assert (status, told["message"].startswith("TemplateUnusable: the chat template fails")) == (422, True)
        assert len(loaded) == 1
        # one that fails at some conversations only
        file.write_text(own + "{% if messages | length == 4 %}{{ nothing.at.all }}{% endif %}")
        async with client(await api.open()) as ai:
            await ai.chat.completions.create(model="m", messages=QUESTION)
            more = [*QUESTION, {"role": "assistant", "content": "Twelve."}, {"role": "user", "content": "Go on."}]
            with pytest.raises(openai.UnprocessableEntityError, match="the model's chat template fails") as refused:
                await ai.chat.completions.create(model="m", messages=more)
            assert (refused.value.code, refused.value.param) == ("template_unusable", None)


async def test_calls_at_once_get_no_more_than_there_may_be(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Twelve.", pace=0.01).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open(max_calls=3)
        async with client(opened) as ai:
            calls = [ai.chat.completions.create(model="m", messages=QUESTION) for _ in range(6)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(e).__name__ for e in ended) == ["ChatCompletion"] * 3 + ["PermissionDeniedError"] * 3
        record = await api.record(opened["id"])
        assert (record.session.calls, record.session.truncated, len(upstream.prompts)) == (3, True, 3)
        assert len(record.trajectory.segments) == 3


async def test_a_caller_that_goes_away_frees_the_engine_and_the_call(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("word " * 400, pace=0.02).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open(max_calls=1)
        session = api.gateway_session(opened["id"])
        async with client(opened) as ai:
            stream = await ai.chat.completions.create(model="m", messages=QUESTION, stream=True)
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            assert (session.in_flight, upstream.running) == (1, 1)
            await stream.close()
            await until(lambda: not session.in_flight and not upstream.running)
            assert (await api.record(opened["id"])).trajectory.segments == []
            # its one call was not used up, and what was not answered is forgotten
            await ai.chat.completions.create(model="m", messages=QUESTION, max_tokens=2)
        assert (await api.record(opened["id"])).trajectory.breaks == {}


async def test_closing_ends_the_calls_in_flight(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("word " * 400, pace=0.02).serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        async with client(opened) as ai:
            call = asyncio.create_task(ai.chat.completions.create(model="m", messages=QUESTION))
            await until(lambda: upstream.running)
            assert (await api.record(opened["id"], close=True)).trajectory.segments == []
            with pytest.raises(openai.APIStatusError, match="closed"):
                await call
        await until(lambda: not upstream.running)


async def test_an_endpoint_that_dies_is_replaced_inside_the_call(
    serving: Serve, saying: Any, template: ChatTemplate
) -> None:
    text = " ".join(str(n) for n in range(60))
    whole = [*template.encode(text), template.stop_ids[0]]
    async with serving() as api, AsyncExitStack() as mortal:
        dying = await mortal.enter_async_context(saying(text, pace=0.02).serving())
        api.serve("a", dying.url)
        opened = await api.open(sampling={"max_tokens": 500})

        def rest(number: int, prompt: Sequence[int]) -> Sequence[int]:
            return whole[len(prompt) - len(dying.prompts[0]) :]

        async with Upstream(rest).serving() as other, client(opened) as ai:
            stream = await ai.chat.completions.create(model="m", messages=QUESTION, stream=True)
            told = []
            async for chunk in stream:
                told.append(chunk.choices[0].delta.content or "")
                if len(told) == 8:
                    api.serve("b", other.url, "v2")
                    await mortal.aclose()
            assert "".join(told) == text
            record = await api.record(opened["id"])
            assert record.session.endpoint == "b"
            assert (api.index.count("a"), api.index.count("b")) == (0, 1)
            (segment,) = record.trajectory.segments
            assert segment.token_ids == [*dying.prompts[0], *whole]
            sampled = [version for version in segment.weights_version if version]
            assert sampled == sorted(sampled)
            assert set(sampled) == {"v1", "v2"}


async def test_a_call_on_an_endpoint_that_fell_silent_waits_and_goes_on_at_the_next_one_that_is_ready(
    serving: Serve, saying: Any, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_in_flight, "QUIET_SECONDS", 0.2)
    text = " ".join(str(n) for n in range(60))
    whole = [*template.encode(text), template.stop_ids[0]]
    async with serving() as api, saying(text, pace=0.02).serving() as silent:
        api.serve("a", silent.url)
        opened = await api.open(sampling={"max_tokens": 500})

        def rest(number: int, prompt: Sequence[int]) -> Sequence[int]:
            return whole[len(prompt) - len(silent.prompts[0]) :]

        async with Upstream(rest).serving() as other, client(opened) as ai:
            stream = await ai.chat.completions.create(model="m", messages=QUESTION, stream=True)
            told = []
            async for chunk in stream:
                told.append(chunk.choices[0].delta.content or "")
                if len(told) == 8:
                    silent.pace = 3600.0
                    api.endpoints.probed("a", Reason("Unreachable"))
                    assert "endpoint a does not answer" in api.sessions.get(opened["id"]).view().waiting
                    api.serve("b", other.url)
            assert "".join(told) == text
            view = api.sessions.get(opened["id"]).view()
            assert (view.endpoint, view.waiting, api.index.counts()) == ("b", "", {"b": 1})
            assert 1 < len(other.prompts[0]) - len(silent.prompts[0]) < len(whole), "with the ids that it had"


def test_a_server_starts_without_what_only_sessions_need() -> None:
    heavy = {"transformers", "tokenizers", "torch", "jinja2"}
    code = f"import sys, rollyard.server_process.main; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_sessions_spread_stay_and_leave_what_takes_no_more_work(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        for id in ("a", "b"):
            api.serve(id, upstream.url)
        opened = [await api.open() for _ in range(6)]
        assert api.index.counts() == {"a": 3, "b": 3}
        async with client(opened[0]) as ai:
            for _ in range(3):
                await ai.chat.completions.create(model="m", messages=QUESTION)
        assert (await api.record(opened[0]["id"])).session.endpoint == opened[0]["endpoint"]
        api.endpoints.remove_unlisted(POOL, {"b"})
        await until(lambda: api.index.counts() == {"b": 6})


async def test_the_loop_serves_others_while_a_long_conversation_is_tokenised(serving: Serve, saying: Any) -> None:
    async with serving() as api, saying("Hi.").serving() as upstream:
        api.serve("e", upstream.url)
        opened = await api.open()
        messages = [{"role": "user", "content": "one two three four five " * 4_000}]
        async with client(opened) as ai:
            call = asyncio.create_task(ai.chat.completions.create(model="m", messages=messages))
            session = api.gateway_session(opened["id"])
            turns = 0
            while not upstream.prompts:
                assert not call.done()
                await asyncio.sleep(0)
                turns += session._executor.busy
            assert turns > 10, "the loop stood still"
            await call
