"""Turns and conversations that a template refuses, or of which it leaves out a part."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.core.errors import TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.tool_calls import parser_for
from tests.support.template_corpus import installed
from tests.support.template_oracle import TOOLS, Oracle, call

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "What now?"}]
BEGINNING = "{{ tools | tojson if tools }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
CALL = '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
END = "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
REFUSAL = "roles must alternate, except for calls and results"
ALTERNATING = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls)"
    " %}{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('" + REFUSAL + "') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
    f"{BEGINNING}{{% for c in m.tool_calls or [] %}}{CALL}{{% endfor %}}{END}"
)
"""Refuses what Ministral's template refuses: a user's message between a result and the answer."""
FIRST_CALL = f"{BEGINNING}{{% if m.tool_calls %}}{{% set c = m.tool_calls[0] %}}{CALL}{{% endif %}}{END}"
"""Leaves out all calls after the first (GigaChat)."""
LONE_CALL = FIRST_CALL.replace(
    "{% if m.tool_calls", "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% if m.tool_calls", 1,
)  # fmt: skip
"""Refuses several calls (Llama)."""
ONE = '<tool_call>{"name": "get_weather", "arguments": {"place": "Quito"}}</tool_call>'
OTHER = '<tool_call>{"name": "find_train", "arguments": {"place": "Lima"}}</tool_call>'


def of(source: str) -> ChatTemplate:
    made = Oracle(source)
    return ChatTemplate(made.tokenizer, made.stop_ids)


def sampled(template: ChatTemplate, text: str) -> Conversation:
    conversation = Conversation(template, ASKED, TOOLS, parser=parser_for(template, None, TOOLS))
    conversation.prompt_ids()
    ids = [*template.encode_behind(template.stop_ids[0], text), template.stop_ids[0]]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")
    return conversation


def result(name: str, content: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": f"{number:09d}", "content": content}


def test_a_user_between_a_result_and_the_answer_is_refused_in_the_words_of_the_template() -> None:
    template = of(ALTERNATING)
    conversation = sampled(template, ONE)
    conversation.add_results(["Sunny."])
    before = conversation.prompt_ids()
    conversation.add_messages([{"role": "user", "content": "Hurry."}])
    with pytest.raises(TaskError, match=f"refuses the conversation: {REFUSAL}"):
        conversation.prompt_ids()
    conversation.replace_unanswered([result("get_weather", "Sunny.")])
    assert conversation.prompt_ids() == before


@pytest.mark.parametrize("source", [FIRST_CALL, LONE_CALL], ids=["left out", "refused"])
def test_several_calls_are_shown_as_they_were_sampled_where_the_template_writes_one(source: str) -> None:
    template = of(source)
    conversation = sampled(template, ONE + OTHER)
    conversation.add_results(["Sunny.", "At nine."])
    prompt = template.decode(conversation.prompt_ids())
    assert (
        f"assistant\n{ONE}{OTHER}<|im_end|>\n<|im_start|>tool\nSunny.<|im_end|>\n<|im_start|>tool\nAt nine." in prompt
    )
    assert conversation.breaks == []
    assert template.fields.one_call == (source is FIRST_CALL)


def test_each_of_a_callers_calls_gets_a_message_where_the_template_writes_one() -> None:
    calls = [call("get_weather", "Quito", 0), call("find_train", "Lima", 1)]
    called = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    results = [result("find_train", "At nine.", 1), result("get_weather", "Sunny.")]
    text = of(FIRST_CALL).render([*ASKED, called, *results], TOOLS, True).partition("What now?")[2]
    messages = [message.partition("<|im_end|>")[0] for message in text.split("<|im_start|>")]
    assert messages[1:] == [
        f"assistant\nI look.{ONE}", "tool\nSunny.", f"assistant\n{OTHER}", "tool\nAt nine.", "assistant\n",
    ]  # fmt: skip
    with pytest.raises(TaskError, match="refuses the conversation: one call"):
        of(LONE_CALL).render([*ASKED, called, *results], TOOLS, True)


def test_a_callers_calls_are_not_left_out_beside_text() -> None:
    """vLLM's template of Phi-4-mini writes the text of a message or its calls."""
    template = of(
        FIRST_CALL.replace("m.content }}{% if m.tool_calls", "m.content }}{% if not m.content and m.tool_calls")
    )
    called = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", "Quito")]}
    assert ONE in template.render([*ASKED, called, result("get_weather", "Sunny.")], TOOLS, True)
    with pytest.raises(TaskError, match="leaves out the calls of a message with text; send calls without text"):
        template.render([*ASKED, {**called, "content": "I look."}, result("get_weather", "Sunny.")], TOOLS, True)


def channels(*messages: tuple[str, str]) -> str:
    """Return messages of the assistant in the format Harmony, as (channel and recipient, text)."""
    ends = {True: "<|call|>", False: "<|end|>"}
    return "".join(
        f"<|start|>assistant{header if to else '<|channel|>' + header}<|message|>{text}{ends[to]}"
        for header, text in messages
        for to in ["to=" in header]
    )


def test_a_callers_thoughts_preamble_and_calls_are_the_messages_that_harmony_has_for_them() -> None:
    """The template of gpt-oss refuses thoughts and text beside a call, and leaves out a second call. Harmony has a message
    for each: thoughts in the channel analysis, a preamble and calls in the channel commentary."""
    template = of(next(t.text for t in installed() if t.name == "trl/gptoss"))
    called = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    calls = [call("get_weather", "Quito", 0), call("find_train", "Lima", 1)]
    results = [result("get_weather", "Sunny."), result("find_train", "At nine.", 1)]
    weather = (" to=functions.get_weather<|channel|>commentary json", '{"place": "Quito"}')
    train = (" to=functions.find_train<|channel|>commentary json", '{"place": "Lima"}')
    sunny = '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"Sunny."<|end|>'
    nine = '<|start|>functions.find_train to=assistant<|channel|>commentary<|message|>"At nine."<|end|>'

    def shown(message: dict[str, Any]) -> str:
        text = template.render([*ASKED, {**called, **message}, *results[: len(message["tool_calls"])]], TOOLS, True)
        return text.partition("What now?<|end|>")[2].removesuffix("<|start|>assistant")

    preamble = channels(("analysis", "Hm."), ("commentary", "I look."))
    assert shown({"tool_calls": calls[:1]}) == preamble + channels(weather) + sunny
    assert shown({"tool_calls": calls}) == preamble + channels(weather) + sunny + channels(train) + nine
    assert shown({"tool_calls": calls[:1], "content": ""}) == channels(("analysis", "Hm."), weather) + sunny
