"""Sampled ids come out as they went in, whatever the template does with the text around them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.core.errors import Invalid, TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Break, BreakCause, Conversation
from rollyard.tokens.tool_calls import ParsedTurn
from tests.support.chat_templates import ALTERNATING, CHATML, LAST_THREE, STABLE, TOOLS_BEFORE_LAST_USER

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
SPACES = ("instructions", "trimmed headers", "unthinking")
QUESTION = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "What is 3 * 4?"}]


class Spy(ChatTemplate):
    """Writes down each text that is tokenised."""

    def __init__(self, tokenizer: Any, stop_ids: list[int]) -> None:
        super().__init__(tokenizer, stop_ids)
        self.encoded: list[str] = []

    def encode_behind(self, last: int | None, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode_behind(last, text)


@dataclass(frozen=True)
class Turn:
    ids: list[int]
    stops: bool
    follow_up: list[str]
    role: str


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture
def spy(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """spy(template): the model's tokenizer under another chat template."""

    def make(template: str) -> Spy:
        monkeypatch.setattr(tokenizer, "chat_template", template)
        return Spy(tokenizer, [tokenizer.eos_token_id])

    return make


def logprobs(ids: list[int]) -> list[float]:
    return [-0.01 * i for i in ids]


def sampled_runs(conversation: Conversation) -> list[list[int]]:
    """The sampled tokens of each segment."""
    return [
        [token for token, sampled in zip(s.token_ids, s.loss_mask, strict=True) if sampled]
        for s in conversation.segments()
    ]


texts = st.text(max_size=30) | st.sampled_from(
    ["<|im_end|>", "<tool_call>", "sampled0turn0end", "\n", "é漢🎉", "{{ 1 }}"]
)
turns = st.builds(
    Turn,
    ids=st.lists(st.integers(3, 1000), max_size=12),
    stops=st.booleans(),
    follow_up=st.lists(texts, min_size=1, max_size=3),
    role=st.sampled_from(["tool", "user"]),
)


@pytest.mark.parametrize("name", STABLE)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversation=st.lists(turns, min_size=1, max_size=5))
def test_only_the_text_around_sampled_turns_is_tokenised_and_only_once(
    spy: Any, name: str, conversation: list[Turn]
) -> None:
    """As long as the template shows the turns as they were sampled; and whatever it does, the prompt says what it says."""
    template = spy(STABLE[name])
    stop = template.stop_ids[0]

    def spelled(text: str) -> str:
        """Some templates add or cut space around a turn."""
        return re.sub(r"\s", "", text) if name in SPACES else text

    under_test = Conversation(template, QUESTION, TOOLS)
    messages: list[dict[str, Any]] = list(QUESTION)
    before: list[int] = []
    sampled: list[list[int]] = []
    for turn in [*conversation, None]:
        template.encoded.clear()
        prompt, breaks = under_test.prompt_ids(), len(under_test.breaks)
        assert under_test.prompt_ids() == prompt
        whole = spelled(template.render(messages, TOOLS, True))
        assert spelled(template.decode(prompt)) == whole
        if not breaks or under_test.breaks[-1].turn != len(sampled):
            assert prompt[: len(before)] == before
            assert spelled(template.decode(before) + "".join(template.encoded)) == whole
        else:
            assert not whole.startswith(spelled(template.decode(before)))
        if turn is None:
            break
        ids = turn.ids + [stop] * turn.stops
        text = under_test.add_sampled(ids, logprobs(ids), "v1", "stop" if turn.stops else "length")
        assert text == template.decode(ids[:-1] if ids and ids[-1] == stop else ids)
        sampled.append(ids)
        before = prompt + ids
        follow_up = [{"role": turn.role, "content": content} for content in turn.follow_up]
        under_test.add_messages(follow_up)
        messages += [{"role": "assistant", "content": text}, *follow_up]
    segments = under_test.segments()
    assert [token for run in sampled_runs(under_test) for token in run] == [token for ids in sampled for token in ids]
    for segment in segments:
        assert [v for v in segment.weights_version if v is not None] == ["v1"] * sum(segment.loss_mask)
        names = ("token_ids", "loss_mask", "logprobs", "weights_version")
        assert len({len(getattr(segment, name)) for name in names}) == 1


@pytest.mark.parametrize("name", ["model's own", "chatml", "grouped results", "unthinking"])
def test_what_a_model_samples_canonically_gives_the_ids_of_the_whole_text(spy: Any, model_dir: Path, name: str) -> None:
    template = spy(STABLE.get(name) or (model_dir / "chat_template.jinja").read_text())
    replies = ['<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>', "It is 12."]
    conversation = Conversation(template, QUESTION, TOOLS)
    messages = list(QUESTION)
    for reply in replies:
        conversation.prompt_ids()
        ids = [*template.encode(reply), template.stop_ids[0]]
        assert conversation.add_sampled(ids, logprobs(ids), "v1", "stop") == reply
        more = [{"role": "tool", "content": "12"}, {"role": "tool", "content": "13"}]
        conversation.add_messages(more)
        messages += [{"role": "assistant", "content": reply}, *more]
    assert conversation.prompt_ids() == template.encode(template.render(messages, TOOLS, True))


def test_an_unfinished_turn_is_closed_by_the_template(spy: Any) -> None:
    template = spy(STABLE["chatml"])
    conversation = Conversation(template, QUESTION)
    prompt = conversation.prompt_ids()
    conversation.add_sampled([50, 51], [-1.0, -1.0], "v1", "length")
    conversation.add_messages([{"role": "user", "content": "Go on."}])
    rest = "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    assert conversation.prompt_ids() == [*prompt, 50, 51, *template.encode(rest)]


class FirstPart:
    """A parser that reads nothing behind the text of a token that ends turns."""

    form, error_role = "", "tool"

    def parse(self, text: str) -> ParsedTurn:
        thoughts, _, answer = text.partition("</think>")
        return ParsedTurn(answer.partition("<|im_end|>")[0], (), None, thoughts)


def test_a_turn_is_not_cut_off_at_the_text_of_a_token_that_ends_turns(spy: Any) -> None:
    template = spy(CHATML.replace("m.content", "m.content | trim"))
    conversation = Conversation(template, QUESTION, parser=FirstPart())
    text = "Hm.</think>Twelve.<|im_end|>It is 12.\n"
    prompt = template.decode(conversation.prompt_ids())
    ids = [*template.encode(text), template.stop_ids[0]]
    conversation.add_sampled(ids, logprobs(ids), "v1", "stop")
    conversation.add_messages(QUESTION[1:])
    rest = "<|im_end|>\n<|im_start|>user\nWhat is 3 * 4?<|im_end|>\n<|im_start|>assistant\n"
    assert template.decode(conversation.prompt_ids()) == prompt + text + rest


def test_versions_may_change_within_a_turn(spy: Any) -> None:
    conversation = Conversation(spy(STABLE["chatml"]), QUESTION)
    prompt = conversation.prompt_ids()
    conversation.add_sampled([50, 51, 52], [-1.0, -2.0, -3.0], ["v1", "v1", "v2"], "stop")
    (segment,) = conversation.segments()
    assert segment.weights_version == [None] * len(prompt) + ["v1", "v1", "v2"]
    assert (segment.prompt_length, segment.extras) == (len(prompt), {"finish_reasons": ["stop"]})
    with pytest.raises(ValueError, match="one each"):
        conversation.add_sampled([50, 51], [-1.0], "v1", "stop")


def test_messages_added_before_the_first_turn_break_nothing(spy: Any) -> None:
    template = spy(STABLE["chatml"])
    conversation = Conversation(template, QUESTION)
    conversation.prompt_ids()
    conversation.add_messages([{"role": "user", "content": "Quickly."}])
    messages = [*QUESTION, {"role": "user", "content": "Quickly."}]
    assert conversation.prompt_ids() == template.encode(template.render(messages, [], True))
    assert (conversation.breaks, conversation.segments()) == ([], [])


def test_a_template_that_rewrites_the_past_opens_a_segment(spy: Any) -> None:
    template = spy(TOOLS_BEFORE_LAST_USER)
    stop = template.stop_ids[0]
    conversation = Conversation(template, QUESTION, TOOLS)
    first = conversation.prompt_ids()
    conversation.add_sampled([50, 51, stop], [-1.0, -2.0, -3.0], "v1", "stop")
    conversation.add_messages([{"role": "tool", "content": "12"}])
    second = conversation.prompt_ids()
    conversation.add_sampled([60, stop], [-4.0, -5.0], "v1", "stop")
    assert conversation.breaks == []
    template.encoded.clear()
    conversation.add_messages([{"role": "user", "content": "And 3 * 5?"}])
    third = conversation.prompt_ids()
    conversation.add_sampled([70, stop], [-6.0, -7.0], "v2", "stop")
    assert conversation.breaks == [Break(2, BreakCause.TEMPLATE_REWROTE)]
    why = conversation.breaks[0].why
    assert why.startswith("before turn 1, after ")
    assert "the template had '[TOOLS] [" in why
    assert "now '<|im_start|>user" in why
    one, two = conversation.segments()
    assert one.token_ids == [*second, 60, stop]
    assert second[: len(first) + 3] == [*first, 50, 51, stop]
    assert two.token_ids == [*third, 70, stop]
    assert two.prompt_length == len(third)
    assert two.loss_mask == [0] * len(third) + [1, 1]
    # the sampled turns stand in the new prompt as they were, between text that was tokenised anew
    before, between, behind = template.encoded
    pieces = [template.encode(before), [50, 51, stop], template.encode(between), [60, stop], template.encode(behind)]
    assert third == [token for piece in pieces for token in piece]
    assert sampled_runs(conversation) == [[50, 51, stop, 60, stop], [70, stop]]
    assert one.extras == {"finish_reasons": ["stop", "stop"]}
    assert two.extras == {"finish_reasons": ["stop"], "opened_by": {"cause": "TemplateRewrote", "why": why}}


def test_a_template_that_forgets_a_turn_opens_a_segment_without_it(spy: Any) -> None:
    template = spy(LAST_THREE)
    conversation = Conversation(template, QUESTION)
    conversation.prompt_ids()
    conversation.add_sampled([50, 51], [-1.0, -2.0], "v1", "length")
    conversation.add_messages([{"role": "tool", "content": n} for n in "123"])
    prompt = conversation.prompt_ids()
    assert conversation.breaks == [Break(1, BreakCause.TURN_DROPPED)]
    tools = [{"role": "tool", "content": n} for n in "123"]
    assert prompt == template.encode(template.render(tools, [], True))
    conversation.add_sampled([60], [-3.0], "v1", "length")
    assert sampled_runs(conversation) == [[50, 51], [60]]


def test_a_template_that_refuses_is_the_tasks_fault(spy: Any) -> None:
    conversation = Conversation(spy(ALTERNATING), QUESTION)
    with pytest.raises(TaskError, match="roles must alternate"):
        conversation.prompt_ids()


def test_a_model_folder_brings_template_and_stop_ids(model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    assert template.decode([template.stop_ids[0]]) == "<|im_end|>"
    assert template.decode([template.stop_ids[0]], skip_special=True) == ""
    text = template.render(QUESTION, [], True)
    assert template.decode(template.encode(text)) == text


def test_a_folder_that_will_not_do_is_refused(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(Invalid, match="no tokenizer"):
        ChatTemplate.load(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    with pytest.raises(Invalid, match="the chat template is missing"):
        ChatTemplate.load(tmp_path)
