"""Logprobs in the answers, by the real clients: those that are recorded, in OpenAI's forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from rollyard.gateway.apis.responses import ResponsesExchange
from rollyard.gateway.session import session
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_bytes import TokenBytes
from simulation import upstream as simulated

QUESTION: list[Any] = [{"role": "user", "content": "What is 3 * 4?"}]
SAID = "It is 12 🎉 – 漢字."


def client(gateway: Any, session: str = "s1") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=f"session-{session}", max_retries=0)


def sampled(gateway: Any, template: ChatTemplate, number: int = 0) -> list[tuple[bytes, float]]:
    """Bytes and logprobs of a segment's sampled tokens, without the token that ended the turn."""
    segment = gateway.sessions["s1"].segments()[number]
    found = zip(segment.token_ids, segment.loss_mask, segment.logprobs, strict=True)
    return [(template.token_bytes.of(i), lp) for i, mask, lp in found if mask and i not in template.stop_ids]


def entries(found: Sequence[Any]) -> list[tuple[bytes, float]]:
    return [(bytes(one.bytes), one.logprob) for one in found]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chats_logprobs_are_the_recorded_ones(tiny: Any, template: ChatTemplate, streamed: bool) -> None:
    asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "top_logprobs": 5, "max_tokens": 24, "n": 2}
    async with client(tiny) as ai:
        found: list[list[Any]] = [[], []]
        texts = ["", ""]
        if streamed:
            async for chunk in await ai.chat.completions.create(**asked, temperature=1.3, seed=1, stream=True):
                for choice in chunk.choices:
                    found[choice.index] += choice.logprobs.content if choice.logprobs else []
                    texts[choice.index] += choice.delta.content or ""
        else:
            for choice in (await ai.chat.completions.create(**asked, temperature=1.3, seed=1)).choices:
                found[choice.index], texts[choice.index] = choice.logprobs.content, choice.message.content
        for index in range(2):
            assert entries(found[index]) == sampled(tiny, template, index)
            assert b"".join(bytes(one.bytes) for one in found[index]).decode("utf-8", "replace").strip() == texts[index]
            for one in found[index]:
                likeliest = [top.logprob for top in one.top_logprobs]
                assert len(likeliest) == 5
                assert likeliest == sorted(likeliest, reverse=True)
                assert one.logprob <= likeliest[0] + 1e-6
                same = [top.logprob for top in one.top_logprobs if top.bytes == one.bytes]
                assert same in ([], [pytest.approx(one.logprob, abs=1e-5)])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_part_of_a_character_has_its_own_bytes(scripted: Any, streamed: bool) -> None:
    async with scripted([SAID]) as (gateway, _), client(gateway) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "stream": streamed}
        said = await ai.chat.completions.create(**asked)
        found = said.choices[0].logprobs.content if not streamed else []
        if streamed:
            async for chunk in said:
                found += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        assert b"".join(bytes(one.bytes) for one in found).decode() == SAID
        assert any(one.token.startswith("bytes:\\x") for one in found), "the tokenizer splits the emoji"
        assert {one.logprob for one in found} == {simulated.LOGPROB}
        assert all(one.top_logprobs == [] for one in found)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_follows_a_stop_text_has_no_logprobs(scripted: Any, streamed: bool) -> None:
    async with scripted(["One, two END three"]) as (gateway, _), client(gateway) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "stop": "END", "stream": streamed}
        said = await ai.chat.completions.create(**asked)
        found = said.choices[0].logprobs.content if not streamed else []
        if streamed:
            async for chunk in said:
                found += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        assert b"".join(bytes(one.bytes) for one in found).startswith(b"One, two")
        assert b"three" not in b"".join(bytes(one.bytes) for one in found)


@pytest.mark.parametrize("streamed", [False, True])
async def test_completions_have_them_in_lists(tiny: Any, template: ChatTemplate, streamed: bool) -> None:
    asked: Any = {"model": "m", "prompt": "one", "logprobs": 3, "max_tokens": 16, "temperature": 1.3, "seed": 2}
    async with client(tiny) as ai:
        parts = []
        if streamed:
            parts = [c.choices[0].logprobs async for c in await ai.completions.create(**asked, stream=True)]
        else:
            parts = [(await ai.completions.create(**asked)).choices[0].logprobs]
        tokens = [token for part in parts for token in part.tokens]
        logprobs = [logprob for part in parts for logprob in part.token_logprobs]
        offsets = [offset for part in parts for offset in part.text_offset]
        recorded = sampled(tiny, template)
        assert logprobs == [logprob for _, logprob in recorded]
        assert len(tokens) == len(recorded)
        assert offsets[0] == 0
        assert offsets == sorted(offsets)
        for token, top in zip(tokens, (top for part in parts for top in part.top_logprobs), strict=True):
            assert token in top
            assert len(top) in (3, 4)


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_have_them_in_the_parts_of_their_text(
    tiny: Any, template: ChatTemplate, streamed: bool
) -> None:
    asked: Any = {
        "model": "m", "input": "What is 3 * 4?", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "max_output_tokens": 16,
    }  # fmt: skip
    async with client(tiny) as ai:
        if streamed:
            pieces: list[Any] = []
            async for event in await ai.responses.create(**asked, stream=True):
                pieces += event.logprobs if event.type == "response.output_text.delta" else []
            said = event.response  # type: ignore[union-attr]
            known = sampled(tiny, template)
            assert [one.logprob for one in pieces] == [logprob for _, logprob in known][: len(pieces)]
        else:
            said = await ai.responses.create(**asked)
        (part,) = said.output[0].content
        assert entries(part.logprobs) == sampled(tiny, template)
        assert {len(one.top_logprobs) for one in part.logprobs} == {2}
        plain = await ai.responses.create(model="m", input="x", max_output_tokens=4)
        assert plain.output[0].content[0].logprobs == []  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("chat", {"logprobs": 5}, "`logprobs` must be true or false"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
        ("chat", {"logprobs": True, "top_logprobs": "2"}, "from 0 to 20"),
        ("chat", {"logprobs": True, "top_logprobs": True}, "from 0 to 20"),
        ("chat", {"logprobs": True, "top_logprobs": 2.5}, "from 0 to 20"),
        ("completions", {"logprobs": True}, "from 0 to 20"),
        ("completions", {"logprobs": -1}, "from 0 to 20"),
        ("responses", {"top_logprobs": 10**30}, "from 0 to 20"),
        ("responses", {"include": "message.output_text.logprobs"}, "`include`"),
    ],
)
async def test_a_wrong_wish_for_logprobs_is_refused(scripted: Any, path: str, fields: Any, words: str) -> None:
    async with scripted([SAID]) as (gateway, upstream), client(gateway) as ai:
        call: Any = {
            "chat": lambda: ai.chat.completions.create(model="m", messages=QUESTION, extra_body=fields),
            "completions": lambda: ai.completions.create(model="m", prompt="x", extra_body=fields),
            "responses": lambda: ai.responses.create(model="m", input="x", extra_body=fields),
        }[path]
        with pytest.raises(openai.BadRequestError, match=words):
            await call()
        assert upstream.prompts == []


async def test_more_logprobs_than_fit_into_memory_are_refused(scripted: Any) -> None:
    async with scripted([SAID]) as (gateway, upstream), client(gateway) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "top_logprobs": 20, "n": 128}
        with pytest.raises(openai.BadRequestError, match="set the limit of tokens to at most 48"):
            await ai.chat.completions.create(**asked, max_tokens=1000)
        with pytest.raises(openai.BadRequestError, match="at most 48"):
            await ai.completions.create(model="m", prompt="x", logprobs=20, n=128)
        assert upstream.prompts == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_thread_formats_an_answer_with_many_logprobs(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    threads = []
    format_all = ResponsesExchange.response_body

    def noted(exchange: ResponsesExchange, responses: Any) -> Any:
        threads.append(threading.current_thread())
        return format_all(exchange, responses)

    monkeypatch.setattr(ResponsesExchange, "response_body", noted)
    config = SessionConfig("policy", Sampling(max_tokens=4000), fixed=False)
    async with scripted(["word " * 2000], config) as (gateway, _), client(gateway) as ai:
        asked: Any = {"model": "m", "input": "x", "include": ["message.output_text.logprobs"]}
        said = await ai.responses.create(**asked, max_output_tokens=4000, stream=streamed)
        if streamed:
            said = [event async for event in said][-1].response
        assert len(said.output[0].content[0].logprobs) > 1500
        assert (await ai.responses.retrieve(said.id)).output == said.output
    assert threads
    assert threading.main_thread() not in threads


async def test_calls_wait_for_room_for_their_logprobs(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_LOGPROBS", 100)
    async with scripted([SAID], pace=0.001) as (gateway, upstream), client(gateway) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True, "max_tokens": 60}
        calls = [asyncio.create_task(ai.chat.completions.create(**asked)) for _ in range(4)]
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, upstream.running)
            await asyncio.sleep(0)
        assert {call.result().choices[0].message.content for call in calls} == {SAID}
        assert most == 1


async def test_an_engine_without_the_likeliest_tokens_is_named(scripted: Any) -> None:
    """The recorded logprobs are there all the same, and the session goes on."""
    async with scripted([SAID]) as (gateway, _), client(gateway) as ai:
        asked: Any = {"model": "m", "messages": QUESTION, "logprobs": True}
        with pytest.raises(openai.BadRequestError, match="leave out `top_logprobs`"):
            await ai.chat.completions.create(**asked, top_logprobs=2)
        assert (await ai.chat.completions.create(**asked)).choices[0].logprobs is not None
        assert gateway.sessions["s1"].calls == 1


def test_bytes_of_a_tokenizer_with_byte_fallback() -> None:
    """It omits a space at the beginning of a text, as those of Llama 2 and Gemma do."""
    tokens = {1: "▁a", 2: "<0xF0>", 3: "b", 4: "▁", 5: "<0x41>", 6: "\ufffd\ufffd"}

    def decode(ids: Sequence[int]) -> str:
        data = b""
        for id in ids:
            name = tokens[id].replace("▁", " ")
            data += bytes([int(name[3:5], 16)]) if name.startswith("<0x") else name.encode()
        return data.decode(errors="replace").removeprefix(" ")

    found = TokenBytes(decode, tokens.get)
    assert [found.of(i) for i in tokens] == [b" a", b"\xf0", b"b", b" ", b"A", None]


def test_bytes_of_every_token_of_a_byte_level_tokenizer(template: ChatTemplate) -> None:
    text = "".join(map(chr, [*range(32, 1200), 0x6F22, 0x1F389, 0xFFFD]))
    ids = template.encode(text)
    assert b"".join(template.token_bytes.of(i) or b"" for i in ids).decode() == text
