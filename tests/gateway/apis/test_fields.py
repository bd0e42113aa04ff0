"""Request fields, sent by the real clients: each has its effect, is accepted for a written reason, or is refused."""

from __future__ import annotations

import pkgutil
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest

from rollyard.gateway.apis import chat, completions, messages, responses
from rollyard.gateway.requests.ignored_fields import ACCEPTED, TOOL
from rollyard.gateway.requests.sampling_overrides import LIMITS, PARALLEL, STOPS
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.lazy_module import LazyModule
from tests.support.tools import TOOLS

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

SDK = {
    "chat": ("openai.types.chat.completion_create_params.CompletionCreateParamsBase", chat.OWN_FIELDS),
    "completions": ("openai.types.completion_create_params.CompletionCreateParamsBase", completions.OWN_FIELDS),
    "responses": ("openai.types.responses.response_create_params.ResponseCreateParamsBase", responses.OWN_FIELDS),
    "messages": ("anthropic.types.message_create_params.MessageCreateParamsBase", messages.OWN_FIELDS),
    "messages (beta)": ("anthropic.types.beta.message_create_params.MessageCreateParamsBase", messages.OWN_FIELDS),
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
DOCS = Path(__file__).resolve().parents[3] / "docs" / "gateway.md"


def claude(gateway: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="session-s1", max_retries=0)


def openai_client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="session-s1", max_retries=0)


@pytest.mark.parametrize("api", SDK)
def test_every_parameter_of_the_clients_is_known_and_in_the_docs(api: str) -> None:
    name, own = SDK[api]
    params = pkgutil.resolve_name(name)
    known = {*own, *ACCEPTED, *LIMITS, *STOPS, PARALLEL, *Sampling.model_fields}
    assert set(typing.get_type_hints(params)) <= known
    told = DOCS.read_text()
    assert [name for name in sorted(typing.get_type_hints(params)) if f"`{name}`" not in told] == []
    assert [name for name in TOOL if f"`{name}`" not in told] == []


async def test_anthropics_tool_runner_works_unchanged(scripted: Any, template: ChatTemplate) -> None:
    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    async with scripted([CALL, "It is 7."]) as (gateway, _), claude(gateway) as ai:
        question: Any = [{"role": "user", "content": "What is 3 + 4?"}]
        runner = ai.beta.messages.tool_runner(model="m", max_tokens=100, tools=[add], messages=question)
        said = [message async for message in runner]
        assert [block.type for message in said for block in message.content] == ["tool_use", "text"]
        assert said[-1].content[0].text == "It is 7."  # type: ignore[union-attr]
        session = gateway.sessions["s1"]
        (segment,) = session.segments()
        assert session.breaks() == {}
        assert [t.tool_results for t in session.turns()] == [["7"], []]
        assert sum(segment.loss_mask) == sum(t.response_length for t in session.turns())


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        (
            "chat/completions",
            {"temprature": 0.5},
            "this gateway does not know the field `temprature`; did you mean `temp",
        ),
        ("chat/completions", {"store": True}, "`store`"),
        ("chat/completions", {"stream_options": {"include_usag": True}}, "did you mean `include_usage`"),
        (
            "chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]},
            "parameters",
        ),
        ("chat/completions", {"moderation": {"model": "x"}}, "`moderation`"),
        ("responses", {"truncation": "auto"}, "shorten"),
        ("responses", {"include": ["message.output_text.unknown"]}, "message.output_text.unknown"),
        ("messages", {"logprobs": True}, "the trajectory has the logprob"),
        ("messages", {"n": 2}, "make one call for each answer"),
        ("responses", {"reasoning": {"mode": "pro"}}, "`reasoning.mode`"),
        ("responses", {"stream_options": [1]}, "`stream_options` must be an object"),
        ("messages", {"thread": {"type": "continue", "previous_message_id": "x"}}, "`thread`"),
        ("messages", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "shorten"),
        ("messages", {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "as your own"),
        ("messages", {"output_config": {"effort": "low", "format": {"type": "json_schema"}}}, "must have a `schema`"),
        ("messages", {"speed": "fast"}, "`speed`"),
        ("messages", {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, r"`tools[].defer_loading`"),
    ],
)
async def test_what_would_be_passed_over_is_refused_by_name(scripted: Any, path: str, more: Any, words: str) -> None:
    question = [{"role": "user", "content": "x"}]
    body = {"model": "m", "max_tokens": 9, **({"input": "x"} if path == "responses" else {"messages": question})}
    if path == "responses":
        del body["max_tokens"]
    async with scripted(["Yes."]) as (gateway, upstream), aiohttp.ClientSession() as http:
        headers = {"X-Rollyard-Session": "s1"}
        async with http.post(f"{gateway.url}/v1/{path}", json=body | more, headers=headers) as answer:
            told = (await answer.json())["error"]["message"]
            assert (answer.status, words in told) == (400, True), told
        assert upstream.prompts == []


async def test_what_changes_nothing_is_accepted(scripted: Any) -> None:
    question: Any = [{"role": "user", "content": "x"}]
    async with scripted(["Yes."]) as (gateway, _), claude(gateway) as ai, openai_client(gateway) as other:
        said = await ai.beta.messages.create(
            model="m", max_tokens=9, messages=question, metadata={"user_id": "u"},
            service_tier="auto", speed="standard", output_config={"effort": "low"}, mcp_servers=[], betas=["x"],
            thinking={"type": "enabled", "budget_tokens": 1024}, inference_geo=None,
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            tools=[{"name": "f", "input_schema": {"type": "object"}, "strict": True, "cache_control": {"type": "ephemeral"}}],
        )  # fmt: skip
        assert said.stop_reason == "end_turn"
        strict: Any = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
        await other.chat.completions.create(
            model="m", messages=question, reasoning_effort="low", verbosity="low", store=False, service_tier="default",
            prompt_cache_key="k", prediction={"type": "content", "content": "y"}, modalities=["text"], tools=strict,
        )  # fmt: skip
        await other.responses.create(
            model="m", input="x", include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"},
            text={"format": {"type": "text"}, "verbosity": "low"}, truncation="disabled", max_tool_calls=3, store=False,
        )  # fmt: skip
        assert gateway.sessions["s1"].calls == 3


async def test_models_are_those_there_are_and_unknown_paths_answer_in_the_callers_shape(scripted: Any) -> None:
    async with scripted(["Yes."]) as (gateway, _), claude(gateway) as ai, openai_client(gateway) as other:
        model = await other.models.retrieve("policy")
        assert model.created == gateway.sessions["s1"].opened_at > 1_700_000_000
        assert (await ai.models.retrieve("policy")).created_at.timestamp() == model.created
        with pytest.raises(openai.NotFoundError, match="this session serves 'policy'"):
            await other.models.retrieve("nope")
        with pytest.raises(anthropic.NotFoundError) as refused:
            await ai.models.retrieve("nope")
        assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        with pytest.raises(anthropic.NotFoundError) as refused:
            await ai.messages.batches.list()
        assert refused.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}/v1/messages") as answer:
            assert (answer.status, (await answer.json())["type"]) == (405, "error")


async def test_an_engines_word_comes_once_and_in_the_callers_shape(tiny: Any) -> None:
    question: Any = [{"role": "user", "content": "x"}]
    long: Any = [{"role": "user", "content": "long " * 5000}]
    async with claude(tiny) as ai, openai_client(tiny) as other:
        with pytest.raises(openai.BadRequestError) as refused:
            await other.chat.completions.create(model="m", messages=question, presence_penalty=0.5)
        assert "presence_penalty" in refused.value.message
        assert "{" not in refused.value.body["message"]  # type: ignore[index]
        with pytest.raises(
            openai.BadRequestError, match=r"maximum context length is 4096 tokens.*\d{5} tokens"
        ) as much:
            await other.chat.completions.create(model="m", messages=long)
        assert (much.value.code, much.value.type) == ("context_length_exceeded", "invalid_request_error")
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d{5} tokens > 4095 maximum") as too:
            await ai.messages.create(model="m", max_tokens=9, messages=long)
        assert too.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
