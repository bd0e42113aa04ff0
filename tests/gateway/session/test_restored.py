"""A session rebuilt from its stored calls is the session that made them, and goes on as that session would."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rollyard.core.errors import TemplateUnusable
from rollyard.gateway.requests.call_errors import GatewayError, unavailable
from rollyard.gateway.requests.chat_request import ChatRequest, ChatResponse, assistant_message
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session import undelivered
from rollyard.gateway.session.saved_calls import SavedCalls
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.gateway.session.stored_call import StoredCall
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from tests.support.tools import TOOLS

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
ODD_CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "\\ud800", "n": NaN}}\n</tool_call>'
TEXTS = [
    "Twelve.",
    "It is 12. END of it",
    f"Let me see.\n{CALL}",
    f"{CALL}\n{CALL}",
    ODD_CALL,
    "<tool_call>\n{no",
    "Ja, é.",
]


class SeededPolicy:
    """A policy whose answer depends on the prompt and the seed alone."""

    context: int | None = None

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.calls = 0

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        self.calls += 1
        draw = random.Random(f"{list(prompt_ids)} {sampling.seed}")
        ids = self.template.encode(draw.choice(TEXTS))
        finish = draw.choice(["stop", "stop", "length"])
        ids = [*ids, self.template.stop_ids[0]] if finish == "stop" else ids
        versions = sorted(draw.choice(["v1", "v2"]) for _ in ids)
        return Sampled(ids, [-draw.random() for _ in ids], versions, finish)


@dataclass
class KeptCalls:
    """A journal in memory, with what a store would have."""

    calls: dict[int, bytes] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    full: bool = False

    def add(self, turn: int, call: StoredCall) -> None:
        assert not self.calls or turn > max(self.calls)
        self.calls[turn] = call.to_bytes()

    def note_delivered(self, turn: int) -> None:
        self.delivered.add(turn)

    async def flush(self) -> None:
        if self.full:
            raise unavailable("the disk is full")


def session(template: ChatTemplate, kept: KeptCalls | None = None) -> GatewaySession:
    config = SessionConfig("m", Sampling(seed=7, stop=["END"]))
    return GatewaySession("s", template, SeededPolicy(template), config, journal=kept)


def restored(template: ChatTemplate, kept: KeptCalls) -> GatewaySession:
    made = session(template, KeptCalls())
    made.restore((StoredCall.from_bytes(body), turn in kept.delivered) for turn, body in kept.calls.items())
    return made


def trajectory(one: GatewaySession) -> Any:
    return [[s.model_dump() for s in one.segments()], [t.model_dump() for t in one.turns()], one.breaks(), one.tokens]


class Harness:
    """Makes calls as harnesses do: it goes on, goes back, edits, leaves out, samples several, and makes calls at once."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.conversations: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []
        self.texts = ["Once upon"]

    async def step(self, one: GatewaySession) -> None:
        kind = self.draw.choice(["go on", "go on", "go on", "new", "edit", "text", "at once"])
        if kind == "text":
            await self._complete(one)
        elif kind == "new" or not self.conversations:
            tools = self.draw.choice([[], TOOLS])
            await self._chat(one, [{"role": "user", "content": f"What is {self.draw.random()}?"}], tools)
        else:
            messages, tools = self.draw.choice(self.conversations)
            if kind == "edit" and len(messages) > 2:
                # the results of a call that is edited away would be refused
                at = self.draw.choice([i for i, m in enumerate(messages[:-1]) if not m.get("tool_calls")])
                messages = [
                    *messages[:at],
                    {"role": "user", "content": f"Edited {self.draw.random()}"},
                    *messages[at + 1 :],
                ]
            calls = [self._chat(one, messages, tools) for _ in range(2 if kind == "at once" else 1)]
            await asyncio.gather(*calls)

    async def _chat(self, one: GatewaySession, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
        begun = self.draw.choice(["", "", "", "The answer"])
        wanted = SamplingOverrides(
            parallel_tool_calls=self.draw.random() < 0.5,
            choices=self.draw.choice([1, 1, 1, 2]),
            top_logprobs=self.draw.choice([None, 0]),
        )
        request = ChatRequest(messages, tools, wanted, begun)
        try:
            answers = await one.chat(request)
        except GatewayError as refusal:
            if "chat template changes it" not in str(refusal):
                raise
            return
        one.delivered(answers)
        answer = self.draw.choice(answers)
        said = assistant_message(begun + answer.content, [(c.id, c.name, c.arguments) for c in answer.calls])
        results = [{"role": "tool", "content": "a b", "tool_call_id": call.id} for call in answer.calls]
        self.conversations.append(([*messages, said, *results, {"role": "user", "content": "And then?"}], tools))

    async def _complete(self, one: GatewaySession) -> None:
        text = self.draw.choice(self.texts)
        prompt: Any = text if self.draw.random() < 0.5 else [5, 6, 7]
        answers = await one.complete(prompt, SamplingOverrides(choices=self.draw.choice([1, 2])))
        one.delivered(answers)
        self.texts.append(text + answers[0].content + " And")


@pytest.mark.parametrize("seed", range(12))
async def test_a_rebuilt_session_is_the_same_and_goes_on_the_same(template: ChatTemplate, seed: int) -> None:
    kept = KeptCalls()
    whole, harness = session(template, kept), Harness(seed)
    for _ in range(14):
        await harness.step(whole)
    rebuilt = restored(template, kept)
    assert trajectory(rebuilt) == trajectory(whole)
    assert rebuilt.calls == whole.calls
    state, ids = harness.draw.getstate(), len(kept.calls)
    conversations, texts = list(harness.conversations), list(harness.texts)
    for _ in range(6):
        await harness.step(whole)
    assert len(kept.calls) > ids
    harness.draw.setstate(state)
    harness.conversations, harness.texts = conversations, texts
    for _ in range(6):
        await harness.step(rebuilt)
    assert without_times(trajectory(rebuilt)) == without_times(trajectory(whole))


async def test_responses_are_continued_by_id_after_a_rebuild(template: ChatTemplate) -> None:
    """Also by the id of a repeated call, whose caller never got the first id."""
    kept = KeptCalls()
    whole = session(template, kept)
    messages = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "What is 3 * 4?"}]
    request = ChatRequest(messages, [], SamplingOverrides(), response_id="resp_1", own_messages=1)
    await whole.chat(request)
    rebuilt = restored(template, kept)
    again = replace(request, response_id="resp_2")
    assert (await rebuilt.chat(again))[0].turn == 0
    told = whole.responses.messages("resp_1")
    assert [message["role"] for message in told] == ["user", "assistant"]
    assert rebuilt.responses.messages("resp_1") == rebuilt.responses.messages("resp_2") == told
    with pytest.raises(GatewayError, match="not found"):
        rebuilt.responses.body("resp_1")
    following = [*messages, told[-1], {"role": "user", "content": "Sure?"}]
    await rebuilt.chat(ChatRequest(following, [], SamplingOverrides()))
    assert (len(rebuilt.segments()), rebuilt.breaks()) == (1, {})


def without_times(told: Any) -> Any:
    for turn in told[1]:
        del turn["timings"]
    return told


QUESTION = ChatRequest([{"role": "user", "content": "What is 3 * 4?"}], [], SamplingOverrides())


async def test_a_repetition_gets_the_recorded_answer_until_it_arrives_and_then_another(template: ChatTemplate) -> None:
    kept = KeptCalls()
    one = session(template, kept)
    first = await one.chat(QUESTION)
    one.not_delivered(first)  # the connection broke
    for live in (one, restored(template, kept)):
        again, other = await live.chat(QUESTION), await live.chat(QUESTION)
        assert again == first
        assert other != first
        live.delivered(again)
        assert live.calls == 2
    assert kept.delivered == {0}


async def test_answers_with_logprobs_are_kept_within_a_limit(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptCalls()
    one = session(template, kept)
    wanted = ChatRequest(QUESTION.messages, [], SamplingOverrides(top_logprobs=0))
    first = await one.chat(wanted)
    one.not_delivered(first)
    (again,) = await restored(template, kept).chat(wanted)
    assert again.logprobs == first[0].logprobs != ()
    monkeypatch.setattr(undelivered, "MAX_FREE_LOGPROBS", len(first[0].logprobs) - 1)
    one.not_delivered(first)
    assert await one.chat(wanted) != first


async def test_the_next_call_shows_that_the_answer_arrived(template: ChatTemplate) -> None:
    kept = KeptCalls()
    one = session(template, kept)
    (answer,) = await one.chat(QUESTION)
    await one.chat(following(answer))
    rebuilt = restored(template, kept)  # the server ended before it noted any delivery
    await rebuilt.chat(QUESTION)
    assert rebuilt.calls == 3
    assert (await rebuilt.chat(following(answer)))[0].turn == 1


def following(answer: ChatResponse) -> ChatRequest:
    said = assistant_message(answer.content, [])
    return ChatRequest([*QUESTION.messages, said, {"role": "user", "content": "Sure?"}], [], SamplingOverrides())


async def test_an_answer_that_cannot_be_stored_is_not_given_and_its_call_repeats_no_sampling(
    template: ChatTemplate,
) -> None:
    kept = KeptCalls(full=True)
    one = session(template, kept)
    heard: list[Any] = []

    async def hear(piece: Any) -> None:
        heard.append(piece)

    for _ in range(2):
        with pytest.raises(GatewayError, match="disk is full"):
            await one.chat(QUESTION, hear)
    kept.full = False
    (answer,) = await one.chat(QUESTION, hear)
    assert "".join(piece.text for piece in heard) == answer.content
    assert (one.calls, len(kept.calls)) == (1, 1)


async def test_another_chat_template_is_noticed(template: ChatTemplate, odd_template: ChatTemplate) -> None:
    kept = KeptCalls()
    await session(template, kept).chat(QUESTION)
    with pytest.raises(TemplateUnusable, match="another one than when the call was made"):
        restored(odd_template, kept)


@pytest.fixture
def odd_template(template: ChatTemplate, tmp_path: Any, model_dir: Any) -> ChatTemplate:
    import shutil

    folder = shutil.copytree(model_dir, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("Chat: " + template.source)
    return ChatTemplate.load(folder)


@pytest.mark.parametrize("seed", [1, 2, 11])  # those that make no calls at once, after which chance decides
async def test_a_harness_that_runs_again_gets_its_answers_as_long_as_it_asks_the_same(
    template: ChatTemplate, seed: int
) -> None:
    kept, policy = KeptCalls(), SeededPolicy(template)
    first, harness = session(template, kept), Harness(seed)
    for _ in range(8):
        await harness.step(first)
    calls = [StoredCall.from_bytes(body) for body in kept.calls.values()]
    again, told = GatewaySession("s", template, policy, first.config), Told()
    again.answer_again(SavedCalls(calls, told))
    harness = Harness(seed)
    for _ in range(8):
        await harness.step(again)
    assert (trajectory(again), policy.calls, told.reports) == (trajectory(first), 0, [])
    await again.chat(QUESTION)
    assert (told.reports, policy.calls) == ([(len(calls), None)], 1)


async def test_calls_at_the_same_time_get_their_answers_in_any_order_and_others_get_none(
    template: ChatTemplate,
) -> None:
    asked = [replace(QUESTION, messages=[{"role": "user", "content": f"What is {n}?"}]) for n in range(4)]
    kept, policy, told = KeptCalls(), SeededPolicy(template), Told()
    first = session(template, kept)
    answers = [await first.chat(one) for one in asked]
    again = GatewaySession("s", template, policy, first.config)
    again.answer_again(SavedCalls([StoredCall.from_bytes(body) for body in kept.calls.values()], told))
    assert await asyncio.gather(*(again.chat(one) for one in asked[2::-1])) == answers[2::-1]
    assert (policy.calls, told.reports) == (0, [])
    await again.chat(QUESTION)
    await again.chat(asked[3])
    assert (policy.calls, again.calls) == (2, 5)
    assert told.reports == [(3, "call 4: the command asks for something else")]


class Told:
    """Reports about saved calls."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, str | None]] = []

    async def __call__(self, given: int, why: str | None) -> None:
        self.reports.append((given, why))
