"""The real openai client against the gateway: what it sends back merges into one segment of exact ids."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from typing import Any

import aiohttp
import openai
import pytest

from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_calls import ParsedTurn, parser_choice
from tests.support.tools import TOOLS
from tests.support.until import until

QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "Solve it."},
    {"role": "user", "content": "What is 3 * 4?"},
]
CALL = 'Let me see.\n<tool_call>\n{"name": "bash", "arguments": {"command": "expr 3 \\\\* 4"}}\n</tool_call>'
SAYS = [CALL, "It is 12 🎉 – 漢字."]


def client(gateway: Any, session: str = "s1", **more: Any) -> openai.AsyncOpenAI:
    base = f"{gateway.url}/v1"  # its own limit is 5 s for a connection, which 256 at once exceed on a busy machine
    return openai.AsyncOpenAI(base_url=base, api_key=f"session-{session}", max_retries=0, **{"timeout": 600, **more})


def runs(session: GatewaySession) -> list[list[int]]:
    return [[t for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m] for s in session.segments()]


def ids(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), template.stop_ids[0]]


async def test_a_loop_with_tools_is_one_segment_of_the_very_ids(scripted: Any, template: ChatTemplate) -> None:
    async with scripted(SAYS) as (gateway, upstream), client(gateway) as ai:
        first = await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)
        message = first.choices[0].message
        assert (message.content, first.choices[0].finish_reason) == ("Let me see.", "tool_calls")
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("bash", {"command": "expr 3 \\* 4"})
        result = {"role": "tool", "tool_call_id": call.id, "content": "12"}
        second = await ai.chat.completions.create(model="m", messages=[*QUESTION, message, result], tools=TOOLS)
        assert second.choices[0].message.content == SAYS[1]
        assert second.choices[0].finish_reason == "stop"
        session = gateway.sessions["s1"]
        (segment,) = session.segments()
        assert segment.token_ids == [*upstream.prompts[1], *ids(template, SAYS[1])]
        assert upstream.prompts[1][: len(upstream.prompts[0])] == upstream.prompts[0]
        assert runs(session) == [ids(template, SAYS[0]) + ids(template, SAYS[1])]
        assert {v for v in segment.weights_version if v} == {"v1"}
        assert session.breaks() == {}
        assert [t.tool_results for t in session.turns()] == [["12"], []]
        assert second.usage.total_tokens == len(segment.token_ids)


def without_content(message: dict[str, Any]) -> None:
    del message["content"]


def null_content(message: dict[str, Any]) -> None:
    message["content"] = None


def empty_content(message: dict[str, Any]) -> None:
    message["content"] = ""


def rewritten(message: dict[str, Any]) -> None:
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=2)


def decorated(message: dict[str, Any]) -> None:
    message |= {"provider_specific_fields": {"refusal": None}, "function_call": None, "annotations": []}
    message["extra"] = {"cost": 0.0}


def in_parts(message: dict[str, Any]) -> None:
    message["content"] = [{"type": "text", "text": message["content"] or ""}]


@pytest.mark.parametrize("change", [without_content, null_content, empty_content, rewritten, decorated, in_parts])
async def test_what_harnesses_do_to_a_turn_does_not_break_the_prefix(scripted: Any, change: Any) -> None:
    says = [CALL.partition("\n")[2], "Done."]
    async with scripted(says) as (gateway, _), client(gateway) as ai:
        first = await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)
        message = first.choices[0].message.model_dump()
        change(message)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12"}
        await ai.chat.completions.create(model="m", messages=[*QUESTION, message, result], tools=TOOLS)
        assert len(gateway.sessions["s1"].segments()) == 1
        assert gateway.sessions["s1"].breaks() == {}


async def test_thoughts_may_be_left_out_of_what_comes_back(scripted: Any, template: ChatTemplate) -> None:
    says = ["<think>Hm, 3 * 4.</think>\n\nTwelve.", "Yes."]
    async with scripted(says) as (gateway, upstream), client(gateway) as ai:
        await ai.chat.completions.create(model="m", messages=QUESTION)
        more = [{"role": "assistant", "content": "Twelve."}, {"role": "user", "content": "Sure?"}]
        await ai.chat.completions.create(model="m", messages=[*QUESTION, *more])
        said = ids(template, says[0])
        assert upstream.prompts[1][len(upstream.prompts[0]) :][: len(said)] == said
        assert len(gateway.sessions["s1"].segments()) == 1


async def test_streams_are_the_same_text_in_pieces(scripted: Any) -> None:
    async with scripted(SAYS) as (gateway, _), client(gateway) as ai:
        for session, says in (("a", SAYS[0]), ("b", SAYS[1])):
            named = {"X-Rollyard-Session": session}
            stream = await ai.chat.completions.create(
                model="m", messages=QUESTION, tools=TOOLS, stream=True, stream_options={"include_usage": True},
                extra_headers=named,
            )  # fmt: skip
            chunks = [chunk async for chunk in stream]
            pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
            assert "".join(pieces) == says.partition("<tool_call>")[0].strip()
            assert len(pieces) > 2
            assert not any("\ufffd" in piece for piece in pieces)
            calls = [c.choices[0].delta.tool_calls for c in chunks if c.choices and c.choices[0].delta.tool_calls]
            arguments = "".join(call[0].function.arguments for call in calls)
            assert (json.loads(arguments) if calls else None) == ({"command": "expr 3 \\* 4"} if calls else None)
            assert chunks[-2].choices[0].finish_reason == ("tool_calls" if calls else "stop")
            assert chunks[-1].usage.completion_tokens == len(runs(gateway.sessions[session])[0])


async def test_the_tiny_policys_streams_come_as_they_are_sampled(tiny: Any) -> None:
    async with client(tiny) as ai:
        for seed in range(4):
            stream = await ai.chat.completions.create(
                model="m", messages=QUESTION, stream=True, seed=seed, temperature=1.3, max_tokens=64
            )
            told = "".join([c.choices[0].delta.content or "" async for c in stream])
            turn = tiny.sessions["s1"].turns()[-1]
            assert told == turn.text.strip()


async def test_an_edited_history_opens_a_branch_and_calls_at_once_do_too(scripted: Any, template: ChatTemplate) -> None:
    async with scripted(["One.", "Two.", "Three.", "Four."], pace=0.01) as (gateway, upstream), client(gateway) as ai:
        ask = ai.chat.completions.create
        await ask(model="m", messages=QUESTION)
        said = [*QUESTION, {"role": "assistant", "content": "One."}]
        await ask(model="m", messages=[*said, {"role": "user", "content": "And?"}])
        session = gateway.sessions["s1"]
        assert (len(session.segments()), session.breaks()) == (1, {})
        # forgets its last turn: a branch from the middle, with the first turn's ids as context
        await ask(model="m", messages=[*said, {"role": "user", "content": "Again!"}])
        assert (len(session.segments()), session.breaks()) == (2, {"HistoryChanged": 1})
        why = session.segments()[1].extras["opened_by"]["why"]
        assert why == "turn 2: message 4 (user) has 'Again!', but had 'And?' (user)"
        first, second = session.segments()
        shared = len(upstream.prompts[0]) + len(ids(template, "One."))
        assert second.token_ids[:shared] == first.token_ids[:shared]
        assert second.loss_mask[:shared] == [0] * shared
        # both go on from the first branch at once: one extends it, one opens a third
        both = [*said, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Two."}]
        more = [ask(model="m", messages=[*both, {"role": "user", "content": word}]) for word in ("x", "y")]
        await asyncio.gather(*more)
        assert len(session.segments()) == 3
        why = session.segments()[2].extras["opened_by"]["why"]
        assert why == "turn 3: after message 5, another call continues from there"
        assert sorted(t.segment for t in session.turns()) == [0, 0, 0, 1, 2]
        assert sum(sum(s.loss_mask) for s in session.segments()) == sum(t.response_length for t in session.turns())


async def test_a_session_by_path_by_header_and_by_key(scripted: Any) -> None:
    async with scripted(["Hi."]) as (gateway, _):
        for base, key, headers in (
            (f"{gateway.url}/s/x/v1", "none", {}),
            (f"{gateway.url}/v1", "none", {"X-Rollyard-Session": "x"}),
            (f"{gateway.url}/v1", "session-x", {}),
        ):
            async with openai.AsyncOpenAI(base_url=base, api_key=key, default_headers=headers, max_retries=0) as ai:
                await ai.chat.completions.create(model="m", messages=QUESTION)
                assert [m.id async for m in ai.models.list()] == ["policy"]
        assert gateway.sessions["x"].calls == 3
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="other", max_retries=0) as ai:
            with pytest.raises(openai.AuthenticationError):
                await ai.chat.completions.create(model="m", messages=QUESTION)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"response_format": {"type": "json"}}, "text, json_object or json_schema"),
        ({"top_logprobs": 2}, "needs `logprobs` true"),
        ({"tool_choice": "required"}, "not in `tools`"),
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"grammar": "x"}}, "grammar"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "text only"),
        ({"messages": []}, "at least one"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(scripted: Any, more: dict[str, Any], word: str) -> None:
    async with scripted(["Hi."]) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match=word):
            await ai.chat.completions.create(**{"model": "m", "messages": QUESTION, **more})
        assert upstream.prompts == []


async def test_harmless_fields_are_taken_and_the_limit_of_calls_holds(scripted: Any) -> None:
    config = SessionConfig("policy", Sampling(), max_calls=1)
    async with scripted(["Hi."], config) as (gateway, _), client(gateway) as ai:
        fine = {"user": "me", "n": 1, "store": False, "metadata": {"a": "b"}, "frequency_penalty": 0}
        await ai.chat.completions.create(model="m", messages=QUESTION, **fine)
        with pytest.raises(openai.PermissionDeniedError, match="1 model calls"):
            await ai.chat.completions.create(model="m", messages=QUESTION)
        assert gateway.sessions["s1"].truncated


@pytest.mark.parametrize("fixed", [True, False])
async def test_fewer_tokens_than_the_sessions_least_may_be_asked_for(scripted: Any, fixed: bool) -> None:
    config = SessionConfig("policy", Sampling(min_tokens=64), fixed=fixed)
    async with scripted(["Hi."], config) as (gateway, _), client(gateway) as ai:
        said = await ai.chat.completions.create(model="m", messages=QUESTION, extra_body={"max_tokens": "16"})
        assert said.choices[0].message.content == "Hi."


async def test_what_does_not_fit_is_told_in_words_that_clients_know(tiny: Any) -> None:
    async with client(tiny) as ai:
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "long " * 5000}])
        assert refused.value.code == "context_length_exceeded"
        assert "maximum context length" in str(refused.value)
        assert tiny.sessions["s1"].truncated


async def test_a_caller_that_goes_away_frees_the_engine_and_the_session(scripted: Any) -> None:
    async with scripted(["word " * 400], pace=0.02) as (gateway, upstream), client(gateway) as ai:
        stream = await ai.chat.completions.create(model="m", messages=QUESTION, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        session = gateway.sessions["s1"]
        assert (session.in_flight, upstream.running) == (1, 1)
        await stream.close()
        await until(lambda: not session.in_flight and not upstream.running)
        assert session.segments() == []
        # what was not answered is forgotten: another question goes on as if it had never been asked
        await ai.chat.completions.create(model="m", messages=QUESTION, max_tokens=2)
        assert (len(session.segments()), session.breaks()) == (1, {})


async def test_256_streams_at_once(scripted: Any) -> None:
    says = scripted(["This is an answer of some words."], pace=0.002)
    async with says as (gateway, _), client(gateway) as ai:

        async def one(number: int) -> str:
            named = {"X-Rollyard-Session": f"s{number}"}
            stream = await ai.chat.completions.create(model="m", messages=QUESTION, stream=True, extra_headers=named)
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        told = await asyncio.gather(*(one(i) for i in range(256)))
        assert set(told) == {"This is an answer of some words."}
        assert all(len(s.segments()) == 1 for s in gateway.sessions.values())


async def test_a_long_prompt_holds_up_nobody_else(
    scripted: Any, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, go = template.encode, threading.Event()

    def slow(text: str) -> list[int]:
        found = encode(text)
        assert len(text) < 100_000 or go.wait(60)
        return found

    monkeypatch.setattr(template, "encode", slow)
    async with scripted(["Hi."]) as (gateway, upstream), client(gateway) as ai, client(gateway, "s2") as other:
        words = [{"role": "user", "content": "some words, " * 12_000}]
        long = asyncio.create_task(ai.chat.completions.create(model="m", messages=words))
        while not ("s1" in gateway.sessions and gateway.sessions["s1"]._executor.busy):
            await asyncio.sleep(0)
        await other.chat.completions.create(model="m", messages=QUESTION)
        go.set()
        await long
        assert [len(p) > 20_000 for p in upstream.prompts] == [False, True]
        # one that goes away while its prompt is prepared holds nothing
        again = asyncio.create_task(ai.chat.completions.create(model="m", messages=words))
        while not gateway.sessions["s1"]._executor.busy:
            await asyncio.sleep(0)
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await ai.chat.completions.create(model="m", messages=[*words, {"role": "assistant", "content": "Hi."}])
        assert not any(branch.busy for branch in gateway.sessions["s1"]._recorded._branches())


async def test_a_request_that_cannot_fit_is_not_read_and_none_after_the_last_call(scripted: Any) -> None:
    config = SessionConfig("policy", Sampling(), max_calls=1, context=64)
    async with scripted(["Hi."], config) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * (2 << 20)}])
        assert refused.value.code == "context_length_exceeded"
        assert (upstream.prompts, gateway.sessions["s1"].truncated) == ([], True)
        await ai.chat.completions.create(model="m", messages=QUESTION)
        async with aiohttp.ClientSession(headers={"X-Rollyard-Session": "s1"}) as http:
            for path, cut in (("messages/count_tokens", False), ("chat/completions", True)):
                gateway.sessions["s1"].truncated = False
                async with http.post(f"{gateway.url}/v1/{path}", data=b"{") as answer:
                    assert (answer.status, gateway.sessions["s1"].truncated) == (403, cut)
            gateway.sessions["s1"].close()
            async with http.post(f"{gateway.url}/v1/messages/count_tokens", data=b"{") as answer:
                assert answer.status == 410


async def test_a_prompt_far_beyond_the_models_context_is_refused_before_it_is_tokenised(
    scripted: Any, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, tokenised = template.encode, []

    def noting(text: str) -> list[int]:
        tokenised.append(len(text))
        return encode(text)

    monkeypatch.setattr(template, "encode", noting)
    async with scripted(["Hi."]) as (gateway, upstream), client(gateway) as ai:
        gateway.policy.endpoint = evolve(gateway.policy.endpoint, context=4096)
        for size in (4 << 20, 900_000):  # the first is not read, the second is read and rendered
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "word " * (size // 5)}]
                )
            assert refused.value.code == "context_length_exceeded"
        assert "maximum context length is 4096 tokens" in str(refused.value), "the words that clients search for"
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.completions.create(model="m", prompt="word " * 180_000)
        assert refused.value.code == "context_length_exceeded"
        async with aiohttp.ClientSession(headers={"X-Rollyard-Session": "s1"}) as http:
            words = [{"role": "user", "content": "word " * 180_000}]
            message = {"model": "m", "max_tokens": 8, "messages": words}
            async with http.post(f"{gateway.url}/v1/messages", json=message) as answer:
                assert "prompt is too long: " in (await answer.json())["error"]["message"]
            assert (upstream.prompts, max(tokenised, default=0) < 1000) == ([], True)
            assert gateway.sessions["s1"].truncated
            async with http.post(f"{gateway.url}/v1/messages/count_tokens", json=message) as answer:
                assert (await answer.json())["input_tokens"] > 180_000, "a question for the length gets the length"
        assert (await ai.chat.completions.create(model="m", messages=QUESTION)).choices[0].message.content == "Hi."


class Picky:
    """A plug-in that fails: on tools with a certain name when it is made, on any turn later."""

    form, error_role = "", "user"

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        if any(tool["function"]["name"] == "odd" for tool in tools):
            raise AttributeError("odd")

    def parse(self, text: str) -> ParsedTurn:
        raise ValueError("no such turn")


async def test_a_parser_that_fails_loses_no_turn(
    scripted: Any, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(parser_choice.BUILT_IN, "picky", parser_choice.Family(Picky, ()))
    async with scripted([CALL, "Yes."], SessionConfig("policy", Sampling(), tool_parser="picky")) as (
        gateway,
        upstream,
    ):
        async with client(gateway) as ai:
            odd: list[Any] = [{"type": "function", "function": {"name": "odd"}}]
            with pytest.raises(openai.BadRequestError, match="does not support these tools"):
                await ai.chat.completions.create(model="m", messages=QUESTION, tools=odd)
            assert upstream.prompts == []
            said = await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)
            assert (said.choices[0].message.content, said.choices[0].finish_reason) == (CALL, "stop")
            again = [*QUESTION, said.choices[0].message, {"role": "user", "content": "Sure?"}]
            await ai.chat.completions.create(model="m", messages=again, tools=TOOLS)
        session = gateway.sessions["s1"]
        assert (session.calls, len(session.turns()), session.breaks()) == (2, 2, {})
        assert runs(session) == [ids(template, CALL) + ids(template, "Yes.")]


async def test_a_call_keeps_the_id_that_the_model_wrote(scripted: Any) -> None:
    """Kimi's template shows the id, and the id holds the tool's name."""
    call = "<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    broken = "<|tool_call_begin|>functions.bash:1<|tool_call_argument_begin|>{<|tool_call_end|>"
    config = SessionConfig("policy", Sampling(), tool_parser="kimi_k2")
    async with scripted([call, call, broken], config) as (gateway, _), client(gateway) as ai:
        first = (await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)).choices[0].message
        (one,) = first.tool_calls or ()
        assert one.id == "functions.bash:0"
        history: list[Any] = [*QUESTION, first, {"role": "tool", "tool_call_id": one.id, "content": "a.py"}]
        second = (await ai.chat.completions.create(model="m", messages=history, tools=TOOLS)).choices[0].message
        (other,) = second.tool_calls or ()
        assert other.id.startswith("call_")  # no two calls of a conversation have the same id
        history += [second, {"role": "tool", "tool_call_id": other.id, "content": "b.py"}]
        third = (await ai.chat.completions.create(model="m", messages=history, tools=TOOLS)).choices[0]
        assert (third.message.content, third.finish_reason) == (broken, "stop")
        session = gateway.sessions["s1"]
        assert session.unread_calls == 1


async def test_a_parser_that_nobody_has_is_told_before_anything_is_sampled(scripted: Any) -> None:
    config = SessionConfig("policy", Sampling(), tool_parser="klingon")
    async with scripted(["Hi."], config) as (gateway, upstream), client(gateway) as ai:
        with pytest.raises(openai.BadRequestError, match="no tool-call parser 'klingon'"):
            await ai.chat.completions.create(model="m", messages=QUESTION, tools=TOOLS)
        assert upstream.prompts == []


async def test_the_tokens_of_all_segments_have_a_limit(scripted: Any) -> None:
    async with (
        scripted(["Hi."], SessionConfig("policy", Sampling(), max_tokens=8)) as (gateway, _),
        client(gateway) as ai,
    ):
        await ai.chat.completions.create(model="m", messages=QUESTION)
        with pytest.raises(openai.PermissionDeniedError, match="8 tokens"):
            await ai.chat.completions.create(model="m", messages=QUESTION)
        assert gateway.sessions["s1"].truncated


async def test_wrong_input_is_told_in_the_apis_shape(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(["One two three four."]) as (gateway, _), client(gateway) as ai:
        said = await ai.chat.completions.create(model="m", messages=QUESTION, extra_body={"max_tokens": "2"})
        assert said.usage.completion_tokens == 2
        async with aiohttp.ClientSession(headers={"X-Rollyard-Session": "s1"}) as http:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x\ud800"}]})
            async with http.post(f"{gateway.url}/v1/chat/completions", data=body) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")

        async def broken(*_: Any) -> None:
            raise KeyError("x")

        monkeypatch.setattr(gateway.policy, "sample", broken)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as failed:
                await ai.with_options(max_retries=3).chat.completions.create(
                    model="m", messages=QUESTION, stream=stream
                )
            assert failed.value.type == "server_error"
            assert failed.value.response.headers["x-should-retry"] == "false"


async def test_texts_that_end_a_turn_add_up(scripted: Any) -> None:
    config = SessionConfig("policy", Sampling(stop=["four"]))
    async with scripted(["one two three four five"], config) as (gateway, _), client(gateway) as ai:
        for stop, left in (("five", "one two three"), ("three", "one two")):
            said = await ai.chat.completions.create(model="m", messages=QUESTION, stop=[stop])
            assert said.choices[0].message.content == left


async def test_a_turn_of_another_branch_comes_back_as_ids(scripted: Any, template: ChatTemplate) -> None:
    says = ["One.", "gone " * 8000, "Two.", "slow " * 8000, "Three."]  # those two are given up
    async with scripted(says, pace=0.002) as (gateway, upstream), client(gateway) as ai:
        ask = ai.chat.completions.create
        await ask(model="m", messages=QUESTION)
        history: list[Any] = [*QUESTION, {"role": "assistant", "content": "One."}, {"role": "user", "content": "And?"}]
        hung = asyncio.create_task(ask(model="m", messages=history))
        await until(lambda: len(upstream.prompts) >= 2)
        assert (await ask(model="m", messages=history)).choices[0].message.content == "Two."
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)
        session = gateway.sessions["s1"]
        await until(lambda: not session.in_flight)
        history += [{"role": "assistant", "content": "Two."}]
        busy = asyncio.create_task(ask(model="m", messages=[*history, {"role": "user", "content": "x"}]))
        await until(lambda: len(upstream.prompts) >= 4)
        await ask(model="m", messages=[*history, {"role": "user", "content": "y"}])
        said = ids(template, "Two.")
        assert any(upstream.prompts[4][i : i + len(said)] == said for i in range(len(upstream.prompts[4])))
        # the third branch shares no turn with the first
        assert [t.segment for t in session.turns()] == [0, 1, 2]
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_an_edited_history_gets_no_thoughts_that_it_does_not_say(scripted: Any, template: ChatTemplate) -> None:
    thinks = "<think>Hm.</think>\n\nTwelve."
    async with scripted([thinks, "Yes.", "No."]) as (gateway, upstream), client(gateway) as ai:
        await ai.chat.completions.create(model="m", messages=QUESTION)
        for content in ("Twelve.", thinks):
            history: list[Any] = [{"role": "user", "content": f"Sum up {content!r}"}]
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": "Sure?"}]
            await ai.chat.completions.create(model="m", messages=history)
        session, said = gateway.sessions["s1"], ids(template, thinks)
        has = [any(p[i : i + len(said)] == said for i in range(len(p))) for p in upstream.prompts[1:]]
        assert has == [False, True]
        opened = [segment.extras.get("opened_by", {}).get("cause") for segment in session.segments()]
        assert opened == [None, None, "HistoryChanged"], "without its thoughts it is nothing that was sampled here"


async def test_a_new_conversation_in_a_session_is_no_break(scripted: Any) -> None:
    async with scripted(["One.", "Two.", "Three."]) as (gateway, _), client(gateway) as ai:
        ask, session = ai.chat.completions.create, gateway.sessions
        for question in ("What is 1 + 1?", "What is 2 + 2?", "What is 2 + 2?"):
            await ask(model="m", messages=[QUESTION[0], {"role": "user", "content": question}])
        assert (len(session["s1"].segments()), session["s1"].breaks()) == (3, {})
        # an answer that was edited, one that was left out, and other tools
        user: dict[str, Any] = {"role": "user", "content": "What is 1 + 1?"}
        said: dict[str, Any] = {"role": "assistant", "content": "One."}
        await ask(model="m", messages=[QUESTION[0], user, {**said, "content": "Two!"}, user])
        await ask(model="m", messages=[QUESTION[0], user, user])
        await ask(model="m", messages=[QUESTION[0], user, said, user], tools=TOOLS)
        assert session["s1"].breaks() == {"HistoryChanged": 3}
        assert [s.extras["opened_by"]["why"] for s in session["s1"].segments()[3:]] == [
            "turn 3: message 3 (assistant) has 'Two!', but had 'One.' (assistant)",
            "turn 4: message 3 (user) has 'What is 1 + 1?', but had 'One.' (assistant)",
            "turn 5: the offered tools differ",
        ]


@pytest.mark.parametrize("repeats_the_stop", [False, True])
async def test_a_turn_cut_at_a_stop_text_comes_back_as_the_ids_that_were_sampled(
    scripted: Any, template: ChatTemplate, repeats_the_stop: bool
) -> None:
    says = ["Thought: 3 * 4\nObservation: 13 and", "Twelve."]
    async with scripted(says) as (gateway, upstream), client(gateway) as ai:
        first = await ai.chat.completions.create(model="m", messages=QUESTION, stop=["Observation:"])
        content = first.choices[0].message.content
        assert (content, first.choices[0].finish_reason) == ("Thought: 3 * 4", "stop")
        back = {"role": "assistant", "content": content + "Observation:" * repeats_the_stop}
        more = [back, {"role": "user", "content": "12"}]
        await ai.chat.completions.create(model="m", messages=[*QUESTION, *more], stop=["Observation:"])
        session = gateway.sessions["s1"]
        (segment,) = session.segments()
        assert session.breaks() == {}
        assert segment.token_ids == [*upstream.prompts[1], *ids(template, "Twelve.")]
        assert upstream.prompts[1][len(upstream.prompts[0]) :][: len(ids(template, says[0]))] == ids(template, says[0])


@pytest.mark.parametrize("stream", [False, True])
async def test_the_embedded_engine_ends_a_turn_at_a_stop_text(tiny: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": QUESTION, "temperature": 0, "max_tokens": 64}
    async with client(tiny) as ai, client(tiny, "s2") as other:
        text = (await ai.chat.completions.create(**asked)).choices[0].message.content
        stop = text[5:8]
        if stream:
            chunks = [c async for c in await other.chat.completions.create(**asked, stop=stop, stream=True)]
            told = "".join(c.choices[0].delta.content or "" for c in chunks)
            finish = chunks[-1].choices[0].finish_reason
        else:
            said = (await other.chat.completions.create(**asked, stop=stop)).choices[0]
            told, finish = said.message.content, said.finish_reason
        assert (told, finish) == (text[: text.index(stop)].rstrip(), "stop")
        (whole,), (cut,) = (tiny.sessions[name].segments() for name in ("s1", "s2"))
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)], (
            "the ids that were sampled, the stop text's with them"
        )
        assert stop in tiny.sessions["s2"].turns()[0].text
        assert len(cut.token_ids) < len(whole.token_ids)


async def test_who_speaks_is_told_to_the_template(scripted: Any, template: ChatTemplate) -> None:
    tokenizer = copy.deepcopy(template._tokenizer)
    tokenizer.chat_template = template.source.replace(
        "+ message.role + '\\n'", "+ (message.name or message.role) + '\\n'"
    )
    async with scripted(["Hi.", "Yes."]) as (gateway, upstream), client(gateway) as ai:
        gateway.template = ChatTemplate(tokenizer, template.stop_ids)
        for name in ("alice", "bob"):
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "name": name, "content": "Hello"}])
        assert ["alice" in template.decode(p) for p in upstream.prompts] == [True, False]
        assert ["bob" in template.decode(p) for p in upstream.prompts] == [False, True]
