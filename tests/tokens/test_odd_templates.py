"""Whatever a template does with a conversation: each prompt says what the template says, or the template is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import BreakCause, Conversation
from tests.support.odd_templates import ODD, UNUSABLE, WITHOUT_RESULTS, chatml, of_assistants
from tests.support.small_tokenizers import fitted, with_shapes
from tests.support.template_families import CHATML_TOKENS, Family
from tests.support.template_trial import tried

TOKENS = [*CHATML_TOKENS, "<think>"]
"""`</think>` is not a token: its end may lie within one."""


def made(shape: str, template: str) -> Any:
    family = Family("odd", template, TOKENS, ["<|im_end|>"], "hermes", str, str, lambda said, added: False)
    return fitted(shape, family)


def conversation_of(template: str, shape: str = "byte-level BPE") -> tuple[ChatTemplate, Conversation]:
    tokenizer = made(shape, template)
    made_of = ChatTemplate(tokenizer, [tokenizer.eos_token_id])
    return made_of, Conversation(made_of, [{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(("shape", "name"), with_shapes(ODD))
def test_every_prompt_is_the_template_rendered_whole(shape: str, name: str) -> None:
    """Word for word where the tokenizer gives texts back as they were; the others keep ids and prefixes."""
    tokenizer = made(shape, ODD[name])
    trial = tried(tokenizer, tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]), 2, f"{shape}/{name}")
    assert trial.wrong == []
    assert trial.prompts == 16


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_template_that_will_not_do_is_refused_before_any_conversation(name: str) -> None:
    template, words = UNUSABLE[name]
    tokenizer = made("byte-level BPE", template)
    with pytest.raises(TemplateUnusable, match=words):
        ChatTemplate(tokenizer, [tokenizer.eos_token_id])


@pytest.mark.parametrize("name", WITHOUT_RESULTS)
def test_a_template_without_tool_results_serves_conversations_without_tools_and_loses_no_result(name: str) -> None:
    template, conversation = conversation_of(WITHOUT_RESULTS[name])
    assert not template.fields.results
    conversation.prompt_ids()
    ids = [*template.encode("Yes."), template.stop_ids[0]]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
    conversation.add_messages([{"role": "user", "content": "And?"}])
    assert template.decode(conversation.prompt_ids()).count("Yes.") == 1
    conversation.add_messages([{"role": "tool", "content": "a file"}])
    with pytest.raises(TaskError, match="writes no results of tool calls"):
        conversation.prompt_ids()


def test_a_template_that_shortens_turns_shows_the_real_text_and_says_which_turn_it_changed() -> None:
    template, conversation = conversation_of(ODD["measures turns"])
    said = "a long answer that is not kept"
    for text in (said, "short"):
        conversation.prompt_ids()
        ids = [*template.encode(text), template.stop_ids[0]]
        conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        conversation.add_messages([{"role": "user", "content": "And?"}])
    prompt = template.decode(conversation.prompt_ids())
    assert f"[{len(said)} characters omitted]" in prompt
    assert "\nshort<|im_end|>" in prompt
    (broken,) = conversation.breaks
    assert broken.turn == 1
    assert "'a long answer" in broken.why
    assert "[30 characters" in broken.why


@pytest.mark.parametrize("written", ["upper", "lower"])
def test_a_template_that_writes_turns_in_another_case_says_so(written: str) -> None:
    template, conversation = conversation_of(of_assistants(f"c | {written}"))
    conversation.prompt_ids()
    conversation.add_sampled(
        [*template.encode("One Two"), template.stop_ids[0]],
        [-1.0] * (len(template.encode("One Two")) + 1),
        "v1",
        "stop",
    )
    conversation.add_messages([{"role": "user", "content": "And?"}])
    assert getattr("One Two", written)() in template.decode(conversation.prompt_ids())
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.TURN_REWRITTEN]
    assert conversation.breaks[0].why.startswith("in turn 1, after ")


@pytest.mark.parametrize("answer", [" odd", "odd", "\n\nodd", "  odd", "\n odd"])
@pytest.mark.parametrize("name", [name for name in ODD if "thoughts" in name])
def test_no_white_space_is_added_behind_dropped_thoughts(name: str, answer: str) -> None:
    template, conversation = conversation_of(ODD[name])
    pick = random.Random(answer)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    for _ in range(3):
        conversation.prompt_ids()
        thoughts = pick.choice(["Well.\n</think>", "<think>\nWell.\n</think>"])
        ids = [*template.encode(thoughts), *template.encode(answer), template.stop_ids[0]]
        text = conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        added = [{"role": "user", "content": "And?"}]
        conversation.add_messages(added)
        messages += [{"role": "assistant", "content": text}, *added]
        assert template.decode(conversation.prompt_ids()) == template.render(messages, [], True)


def test_an_end_of_a_turn_is_not_doubled_where_the_next_turn_spells_it_and_the_template_escapes_that() -> None:
    shown = "{%- for m in messages %}{{ (m.content | e) ~ '<|im_end|>' if m.role == 'assistant' else m.content }}{% endfor %}"
    template, conversation = conversation_of(shown)
    for said in ("one", "<|im_end|>"):
        conversation.prompt_ids()
        ids = [*(token for letter in said for token in template.encode(letter)), template.stop_ids[0]]
        conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
        conversation.add_messages([{"role": "user", "content": "And?"}])
    prompt = template.decode(conversation.prompt_ids())
    assert prompt == "Helloone<|im_end|>And?&lt;|im_end|&gt;<|im_end|>And?"


def test_a_template_that_only_names_channels_shows_a_turn_with_channels_whole() -> None:
    template, conversation = conversation_of("{# made without <|channel|> #}" + chatml("c"))
    conversation.prompt_ids()
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    ids = [*template.encode(said), template.stop_ids[0]]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
    conversation.add_messages([{"role": "user", "content": "And?"}])
    assert f"<|im_start|>assistant\n{said}<|im_end|>" in template.decode(conversation.prompt_ids())
    assert conversation.breaks == []


def test_the_ids_behind_dropped_thoughts_stay_as_they_were_sampled() -> None:
    template, conversation = conversation_of(ODD["behind the thoughts"])
    conversation.prompt_ids()
    answer = [token for letter in " odd" for token in template.encode(letter)]  # not as the tokenizer writes it
    ids = [*template.encode("Well.</think>"), *answer, template.stop_ids[0]]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
    conversation.add_messages([{"role": "user", "content": "And?"}])
    prompt = conversation.prompt_ids()
    assert any(prompt[i : i + len(answer)] == answer for i in range(len(prompt)))
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.THOUGHTS_DROPPED]
