"""Callers send a history back in other spellings: it is the same history, and the model's own ids stay in its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.requests.chat_request import ChatRequest, ChatResponse, assistant_message
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate, Message
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from tests.gateway.session.test_restored import KeptCalls
from tests.support.template_oracle import TOOLS, Oracle
from tests.tokens.test_fields import KIMI, oracle
from tests.tokens.test_refused_turns import ALTERNATING, ONE, REFUSAL

ASKED: list[Message] = [{"role": "user", "content": "What now?"}]
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Quito", "days": 2}}\n</tool_call>'
HERMES = f"<think>\nI look.\n</think>\n\nSo:\n{CALLED}"


class Says:
    """A policy that says these texts, one a turn, and again from the first."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, *texts: str) -> None:
        self.template, self.texts = template, texts
        self.prompts: list[str] = []

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        text = self.texts[len(self.prompts) % len(self.texts)]
        self.prompts.append(self.template.decode(prompt_ids))
        ids = [*self.template.encode_behind(self.template.stop_ids[0], text), self.template.stop_ids[0]]
        return Sampled(ids, [-0.5] * len(ids), ["v1"] * len(ids), "stop")


def session(made: Oracle, *texts: str, kept: KeptCalls | None = None) -> tuple[GatewaySession, Says]:
    policy = Says(ChatTemplate(made.tokenizer, made.stop_ids), *texts)
    return GatewaySession("s", policy.template, policy, SessionConfig("m", Sampling()), journal=kept), policy


async def ask(one: GatewaySession, messages: Sequence[Message]) -> ChatResponse:
    (response,) = await one.chat(ChatRequest(list(messages), TOOLS, SamplingOverrides()))
    one.delivered([response])
    return response


def answered(response: ChatResponse, *results: str) -> list[Message]:
    """The turn and the results of its calls, as a client sends them."""
    calls = [(call.id, call.name, call.arguments) for call in response.calls]
    message = assistant_message(response.content, calls)
    pairs = zip(response.calls, results, strict=True)
    return [message, *({"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs)]


def renamed(messages: list[Message]) -> list[Message]:
    def other(id: str) -> str:
        return f"toolu_{id}"

    changed = []
    for message in messages:
        if "tool_calls" in message:
            message = {**message, "tool_calls": [{**c, "id": other(c["id"])} for c in message["tool_calls"]]}
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": other(message["tool_call_id"])}
        changed.append(message)
    return changed


def with_calls(messages: list[Message], change: Callable[[dict[str, Any]], Any]) -> list[Message]:
    def changed(call: dict[str, Any]) -> dict[str, Any]:
        return {**call, "function": {**call["function"], "arguments": change(call["function"]["arguments"])}}

    return [{**m, "tool_calls": [changed(c) for c in m["tool_calls"]]} if "tool_calls" in m else m for m in messages]


REPLAYS: dict[str, Callable[[list[Message]], list[Message]]] = {
    "as it was": list,
    "thoughts removed": lambda messages: [
        {**m, "content": m["content"].rpartition("</think>")[2].strip()} if m["role"] == "assistant" else m for m in messages
    ],
    "keys in another order": lambda messages: with_calls(messages, lambda given: dict(reversed(given.items()))),
    "arguments through JSON without spaces": lambda messages: with_calls(
        messages, lambda given: json.loads(json.dumps(given, separators=(",", ":")))
    ),
    "blanks at the ends": lambda messages: [
        {**m, "content": f"{m['content']} \n"} if m["role"] == "assistant" else m for m in messages
    ],
    "other ids of calls": renamed,
}  # fmt: skip


@pytest.mark.parametrize("replay", REPLAYS)
async def test_five_turns_that_come_back_in_another_spelling_are_one_segment(replay: str) -> None:
    one, policy = session(oracle("qwen3"), HERMES)
    messages = list(ASKED)
    for turn in range(5):
        messages += answered(await ask(one, REPLAYS[replay](messages)), f"Sunny {turn}.")
    await ask(one, REPLAYS[replay](messages))
    assert one.breaks() == {}
    (segment,) = one.segments()
    stop = policy.template.stop_ids[0]
    assert [i for i, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m].count(stop) == 6
    assert all(policy.prompts[-1].count(f"<tool_response>\nSunny {turn}.\n") == 1 for turn in range(5))


async def test_a_question_behind_a_result_is_refused_in_the_words_of_the_template_and_the_session_goes_on() -> None:
    one, _ = session(Oracle(ALTERNATING), ONE, "Sunny.")
    messages = [*ASKED, *answered(await ask(one, ASKED), "Sunny.")]
    with pytest.raises(GatewayError, match=REFUSAL) as caught:
        await ask(one, [*messages, {"role": "user", "content": "Hurry."}])
    assert caught.value.status == 400
    assert (await ask(one, messages)).content == "Sunny."
    assert (len(one.segments()), one.breaks()) == (1, {})


CALL = "<|tool_calls_section_begin|>BODY<|tool_calls_section_end|>"
BODY = '<|tool_call_begin|>functions.get_weather:NUMBER<|tool_call_argument_begin|>{"place": "Quito"}<|tool_call_end|>'


@pytest.mark.parametrize("change", [list, renamed], ids=["the same ids", "renamed"])
async def test_a_call_keeps_the_id_that_the_model_wrote_for_the_caller_and_in_the_prompt(change: Any) -> None:
    kept = KeptCalls()
    first = CALL.replace("BODY", "".join(BODY.replace("NUMBER", str(k)) for k in (0, 1)))
    one, policy = session(Oracle(KIMI), first, CALL.replace("BODY", BODY.replace("NUMBER", "2")), "Sunny.", kept=kept)
    messages = list(ASKED)
    for ids, results in (([0, 1], ("Sunny.", "Rain.")), ([2], ("Snow.",))):
        response = await ask(one, change(messages))
        assert [call.id for call in response.calls] == [f"functions.get_weather:{k}" for k in ids]
        messages += answered(response, *results)
    await ask(one, change(messages))
    for k, result in enumerate(("Sunny.", "Rain.", "Snow.")):
        assert policy.prompts[-1].count(f"Return of functions.get_weather:{k}\n{result}") == 1
    assert "toolu_" not in policy.prompts[-1]
    assert one.breaks() == {}
    rebuilt, _ = session(Oracle(KIMI), kept=KeptCalls())
    rebuilt.restore((StoredCall.from_bytes(body), True) for body in kept.calls.values())
    assert [s.token_ids for s in rebuilt.segments()] == [s.token_ids for s in one.segments()]
