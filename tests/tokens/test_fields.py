"""Sampled turns reach a template in its own fields, so that the text around them is the template's."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from rollyard.core.errors import TaskError
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import BreakCause, Conversation
from rollyard.tokens.template_fields import CallIds
from rollyard.tokens.tool_calls import parser_for
from tests.support.template_corpus import installed
from tests.support.template_oracle import TOOLS, Oracle, call

ASKED = [{"role": "user", "content": "What now?"}]
ARGUMENTS = {"place": "Quito", "days": 2}
ANALYSIS = "<|channel|>analysis<|message|>I must look.<|end|><|start|>assistant"
COMMENTARY = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
HARMONY_CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"place": "Quito"}'


@cache
def oracle(name: str) -> Oracle:
    return Oracle(next(t.text for t in installed() if t.name == f"trl/{name}"))


def of(made: Oracle) -> ChatTemplate:
    return ChatTemplate(made.tokenizer, made.stop_ids)


def begin(template: ChatTemplate, messages: list[dict[str, Any]] = ASKED, tools: Any = TOOLS) -> Conversation:
    parser = parser_for(template, None, tools) if tools else None
    conversation = Conversation(template, messages, tools, parser=parser)
    conversation.prompt_ids()
    return conversation


def say(template: ChatTemplate, conversation: Conversation, text: str, end: str | None = None) -> None:
    conversation.prompt_ids()
    stop = next(i for i, word in template.ends.items() if word == end) if end else template.stop_ids[0]
    ids = [*template.encode_behind(template.stop_ids[0], text), stop]
    conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop")


def shown(template: ChatTemplate, conversation: Conversation) -> str:
    return template.decode(conversation.prompt_ids())


@pytest.mark.parametrize(
    "name", ["nemotron_3_nano", "nemotron_3_super", "glm4moe_training", "qwen3_5_think", "qwen3_6"]
)
def test_thoughts_before_a_call_keep_the_markers_around_them(name: str) -> None:
    made = oracle(name)
    template, answer = of(made), made.said("", [call("get_weather", "Quito")], "I look.")
    conversation = begin(template)
    text = made.spoken(ASKED, answer, TOOLS, "I look.")
    say(template, conversation, text, made.stop_of(ASKED, answer, TOOLS))
    conversation.add_results(["Sunny."])
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "000000000", "content": "Sunny."}
    assert shown(template, conversation) == made.render([*ASKED, answer, result], TOOLS)
    assert "I look." in shown(template, conversation)
    assert conversation.breaks == []


def test_a_turn_that_the_model_spells_in_its_own_way_breaks_nothing_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = of(oracle("qwen2_5"))
    render, renderings = template.render, list[Any]()
    monkeypatch.setattr(template, "render", lambda *given: renderings.append(given) or render(*given))
    conversation = begin(template)
    text = '<tool_call>\n{"name":"get_weather","arguments":{"place":"Quito"}}\n</tool_call>'
    before = conversation.prompt_ids()
    for results in (["Sunny."], ["Rain."]):
        say(template, conversation, text)
        conversation.add_results(results)
    prompt = shown(template, conversation)
    assert conversation.prompt_ids()[: len(before)] == before
    assert prompt.count(text + "<|im_end|>\n<|im_start|>user\n<tool_response>\n") == 2
    assert conversation.breaks == []
    (segment,) = conversation.segments()
    assert segment.extras == {"finish_reasons": ["stop", "stop"], "respelled": 2}
    assert len(renderings) == 3  # one for each prompt


def test_a_respelled_turn_keeps_its_ids_in_a_segment_that_opens_later() -> None:
    made = oracle("qwen3")
    template = of(made)
    conversation = begin(template)
    text = '<tool_call>\n{"name":"get_weather","arguments":{"place":"Quito"}}\n</tool_call>'
    say(template, conversation, "<think>\nHm.\n</think>\n\nYes.")
    conversation.add_messages([{"role": "user", "content": "And then?"}])  # drops the thoughts
    say(template, conversation, text)
    conversation.add_results(["Sunny."])
    say(template, conversation, "<think>\nHm.\n</think>\n\nSunny.")
    conversation.add_messages([{"role": "user", "content": "And then?"}])
    assert text in shown(template, conversation)
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.THOUGHTS_DROPPED] * 2


@pytest.mark.parametrize(
    "before",
    [ANALYSIS, ANALYSIS + ANALYSIS.replace("must", "will"), ANALYSIS + COMMENTARY, COMMENTARY, ""],
    ids=["thoughts", "two thoughts", "thoughts and preamble", "preamble", "call"],
)
def test_channels_before_a_call_stay_as_they_were_sampled(before: str) -> None:
    template = of(oracle("gptoss"))
    conversation = begin(template)
    first = shown(template, conversation)
    say(template, conversation, before + HARMONY_CALL, "<|call|>")
    conversation.add_results(["Sunny."])
    result = '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"Sunny."<|end|>'
    assert shown(template, conversation) == first + before + HARMONY_CALL + "<|call|>" + result + "<|start|>assistant"
    assert conversation.breaks == []


def test_thoughts_of_a_finished_task_are_gone_and_those_of_the_current_one_are_not() -> None:
    template = of(oracle("gptoss"))
    conversation = begin(template)
    say(template, conversation, ANALYSIS + HARMONY_CALL, "<|call|>")
    conversation.add_results(["Sunny."])
    assert "I must look." in shown(template, conversation)
    say(template, conversation, "<|channel|>final<|message|>It is sunny.", "<|return|>")
    conversation.add_messages([{"role": "user", "content": "And then?"}])
    assert "I must look." not in shown(template, conversation)
    assert "<|channel|>final<|message|>It is sunny.<|end|>" in shown(template, conversation)
    assert "<|start|>assistantanalysis" not in shown(template, conversation)


def test_a_template_that_writes_results_with_their_calls_loses_none() -> None:
    made = oracle("gemma4")
    template = of(made)
    conversation = begin(template)
    say(template, conversation, '<|tool_call>call:get_weather{place:<|"|>Quito<|"|>}<tool_call|>', "<|tool_response>")
    conversation.add_results(["Sunny."])
    assert '<|tool_response>response:get_weather{value:<|"|>Sunny.<|"|>}<tool_response|>' in shown(
        template, conversation
    )


def test_a_result_that_a_template_would_leave_out_is_refused() -> None:
    template = of(oracle("gemma4"))
    assert template.fields.results
    with pytest.raises(TaskError, match="only after a call"):
        template.render(
            [*ASKED, {"role": "assistant", "content": "I look."}, {"role": "tool", "content": "Sunny."}], TOOLS, True
        )


CHATML = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'tool' %}{{ 'Return of ' + m.tool_call_id + '\\n' }}{% endif %}{{ m.content }}
    {%- for c in m.tool_calls or [] %}CALLS{% endfor %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
KIMI = CHATML.replace(
    "CALLS",
    "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
)
MISTRAL = CHATML.replace(
    "CALLS",
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function | tojson }}{{ c.id }}",
)
ITEMS = CHATML.replace(
    "CALLS",
    "<tool_call>\\n<function={{ c.function.name }}>\\n{% for k, v in c.function.arguments | items %}"
    "<parameter={{ k }}>\\n{{ v }}\\n</parameter>\\n{% endfor %}</function>\\n</tool_call>",
)
TEXT = CHATML.replace("CALLS", "<tool_call>{{ '{\"arguments\": ' + c.function.arguments + '}' }}</tool_call>")


@pytest.mark.parametrize("id", ["functions.get_weather:0", "functions.get_weather:7"])
def test_the_id_that_the_model_wrote_stands_before_its_result(id: str) -> None:
    template = of(Oracle(KIMI))
    assert template.fields.call_ids is CallIds.NAMED
    conversation = begin(template)
    body = f'<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{"place": "Quito"}}<|tool_call_end|>'
    say(template, conversation, f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>")
    conversation.add_results(["Sunny."])
    assert f"{body}<|tool_calls_section_end|><|im_end|>\n<|im_start|>tool\nReturn of {id}\nSunny." in shown(
        template, conversation
    )
    assert conversation.breaks == []


@pytest.mark.parametrize(("source", "form"), [(KIMI, r"functions\.get_weather:0"), (MISTRAL, "[a-z0-9]{9}")])
def test_ids_of_other_models_in_a_history_get_the_templates_form(source: str, form: str) -> None:
    template = of(Oracle(source))
    history: list[dict[str, Any]] = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [{**call("get_weather", "Quito"), "id": "call_1"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        {"role": "tool", "content": "More."},
    ]
    text = template.render(history[:3], TOOLS, True)
    assert "call_1" not in text
    id = text.partition("Return of ")[2].partition("\n")[0]
    assert re.fullmatch(form, id)
    assert text.count(id) == 2
    del history[2]
    assert f"Return of {id}\nMore." in template.render(history, TOOLS, True), "a result without an id follows its call"


HISTORIES: dict[str, dict[str, Any]] = {
    '{"a":1}': {"a": 1}, "{}": {}, "": {}, "  ": {}, "null": {}, '{"z": "\\u00e9", "a": "C:\\\\x"}': {"z": "é", "a": "C:\\x"},
}  # fmt: skip


@pytest.mark.parametrize("source", [KIMI, ITEMS, TEXT], ids=["object", "items", "text"])
@pytest.mark.parametrize("arguments", HISTORIES)
def test_arguments_as_text_are_rendered_like_the_object(source: str, arguments: str) -> None:
    template = of(Oracle(source))

    def rendered(given: Any) -> str:
        function = {"name": "get_weather", "arguments": given}
        called = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        return template.render([*ASKED, called], TOOLS, True)

    text = rendered(arguments)
    assert text == rendered(HISTORIES[arguments])
    assert "\\\\\\\\" not in text


@pytest.mark.parametrize("source", [KIMI, ITEMS, TEXT], ids=["object", "items", "text"])
@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", '"s"', "7"])
def test_arguments_that_are_no_object_refuse_no_history_and_are_shown(source: str, arguments: str) -> None:
    template = of(Oracle(source))
    function = {"name": "get_weather", "arguments": arguments}
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    text = template.render([*ASKED, called], TOOLS, True)
    assert arguments.strip('"{: ') in text.rpartition("get_weather" if source is not TEXT else "<tool_call>")[2]


@pytest.mark.parametrize("name", ["gptoss", "muse_glimmer"])
def test_a_tool_without_a_description_is_offered(name: str) -> None:
    template = of(oracle(name))
    bare: list[dict[str, Any]] = deepcopy(TOOLS)
    for tool in bare:
        del tool["function"]["description"]
    assert "find_train" in template.render(ASKED, bare, True)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "cohere"])
def test_a_template_without_tools_serves_conversations_and_says_that_it_shows_none(name: str) -> None:
    template = of(oracle(name))
    fields = template.fields
    assert (fields.tools, fields.calls, fields.results) == (False, False, False)
    conversation = begin(template, tools=[])
    say(template, conversation, "Yes.")
    conversation.add_messages([{"role": "user", "content": "And then?"}])
    assert "Yes." in shown(template, conversation)
    called = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", "Quito")]}
    with pytest.raises(TaskError, match="writes no tool calls"):
        template.render([*ASKED, called], [], True)


@pytest.mark.parametrize(
    ("name", "field"),
    [("qwen3", "reasoning_content"), ("gptoss", None), ("qwen2_5", None), ("gemma3", None)],
)
def test_the_field_of_thoughts_is_the_one_that_the_template_reads(name: str, field: str | None) -> None:
    fields = of(oracle(name)).fields
    if name == "gptoss":
        assert fields.thoughts in ("reasoning_content", "thinking")
    else:
        assert fields.thoughts == field


def test_no_argument_is_spelled_twice() -> None:
    """A template that writes arguments as JSON text gets text, and one that makes the JSON itself gets an object."""
    for source, arguments in ((TEXT, json.dumps(ARGUMENTS)), (KIMI, json.dumps(ARGUMENTS))):
        template = of(Oracle(source))
        function = {"name": "get_weather", "arguments": ARGUMENTS}
        called = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        assert arguments in template.render([*ASKED, called], TOOLS, True)


def made_of(*pieces: str) -> Oracle:
    return Oracle("".join(pieces))


def test_a_call_is_read_whose_first_mark_stands_in_the_prompt() -> None:
    """Functionary 3.2: the prompt ends with `>>>`."""
    header = "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    made = made_of(
        "{{ tools | tojson if tools }}{% for m in messages %}" + header,
        "{% if m.role == 'assistant' %}{{ '>>>all\n' + m.content if m.content }}",
        "{% for c in m.tool_calls or [] %}{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}",
        "{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}",
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n>>>{% endif %}",
    )
    template = of(made)
    conversation = begin(template)
    say(template, conversation, 'all\nI look.>>>get_weather\n{"place": "Quito"}')
    assert conversation.last.parsed.content == "I look."
    assert [call.arguments for call in conversation.last.parsed.calls] == [{"place": "Quito"}]
    conversation.add_results(["Sunny."])
    say(template, conversation, "all\nThat is all\nfor now.")
    assert conversation.last.parsed.content == "That is all\nfor now."
    conversation.add_messages(ASKED)
    say(template, conversation, "")
    assert conversation.last.parsed.content == ""
    assert [broken.cause for broken in conversation.breaks] == []
    plain = begin(template, tools=())
    say(template, plain, "all\nYes.")
    assert plain.last.parsed.content == "Yes."
    plain.add_messages(ASKED)
    assert "\n\n>>>all\nYes.<|eot_id|>" in shown(template, plain)


def test_the_field_of_thoughts_is_found_in_a_template_that_writes_them_only_before_calls() -> None:
    """Command R7B. Its prompt is written in any case, so that the witness must not take it for the end of thoughts."""
    made = made_of(
        "{{ tools | tojson if tools }}{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ m.role }}:",
        "{% if m.role == 'assistant' %}{% if m.tool_calls %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>",
        "<|START_ACTION|>[{% for c in m.tool_calls %}",
        '{"tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
        "{{ ', ' if not loop.last }}{% endfor %}]<|END_ACTION|>",
        "{% else %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}",
        "{% else %}{{ m.content }}{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}",
        "<|START_OF_TURN_TOKEN|>assistant:<|START_THINKING|><|END_THINKING|>",
    )
    assert of(made).fields.thoughts == "reasoning_content"
    assert made.spoken(ASKED, made.said("Yes."), ()) == "<|START_RESPONSE|>Yes.<|END_RESPONSE|>"
    template = of(made)
    conversation = begin(template)
    say(template, conversation, "<|START_RESPONSE|>Yes.<|END_RESPONSE|>")
    conversation.add_messages(ASKED)
    assert "assistant:<|START_RESPONSE|>Yes.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>user:" in shown(
        template, conversation
    ).replace("<|START_OF_TURN_TOKEN|>", "")


def test_a_call_is_shown_beside_text_where_the_template_writes_only_one_of_them() -> None:
    """vLLM's template of Phi-4-mini."""
    made = made_of(
        "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>",
        "{% if m.content %}{{ m.content }}{% else %}{% for c in m.tool_calls %}functools[",
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]',
        "{% endfor %}{% endif %}<|end|>{% endfor %}<|assistant|>",
    )
    template = of(made)
    assert not template.fields.calls_with_content
    conversation = begin(template)
    said = 'I look. functools[{"name": "get_weather", "arguments": {"place": "Quito"}}]'
    say(template, conversation, said)
    conversation.add_results(["Sunny."])
    assert f"<|assistant|>{said}<|end|><|tool|>Sunny.<|end|>" in shown(template, conversation)
    assert conversation.breaks == []


def test_a_call_that_begins_with_white_space_gets_no_other_white_space_before_it() -> None:
    """Granite 20B: behind a later prompt the template writes an answer at another place than the prompt asked for it."""
    made = made_of(
        "{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }}\n",
        "{% elif m.tool_calls %}ASSISTANT:{% for c in m.tool_calls %}{{ '\n<function_call> ' }}",
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
        "{{ '\n' }}{% endfor %}</s>{% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }} </s>",
        "{% else %}<function_response> {{ m.content }}{% endif %}{% endfor %}{{ 'ASSISTANT: \n' }}",
    )
    template = of(made)
    conversation = begin(template)
    said = '\n<function_call> {"name":"get_weather","arguments":{"place":"Quito"}}\n'
    say(template, conversation, said, "</s>")
    conversation.add_results(["Sunny."])
    assert f"ASSISTANT:{said}</s><function_response> Sunny." in shown(template, conversation)


def test_the_line_that_ends_apriels_thoughts_is_no_part_of_the_answer() -> None:
    made = made_of(
        "{{ tools | tojson if tools }}{% for m in messages %}{{ '\n' }}<|begin_{{ m.role }}|>\n{% if m.role == 'assistant' %}",
        "{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}\n[BEGIN FINAL RESPONSE]\n{% endif %}",
        "{{ m.content }}\n<|end|>{% else %}{{ m.content }}{% endif %}{% endfor %}{# <tool_calls> #}",
        "{% if add_generation_prompt %}{{ '\n' }}<|begin_assistant|>\nHere are my reasoning steps:\n{% endif %}",
    )
    template = of(made)
    conversation = begin(template)
    say(template, conversation, "2 + 2\n[BEGIN FINAL RESPONSE]\n4\n")
    assert (conversation.last.parsed.thoughts, conversation.last.parsed.content) == ("2 + 2", "4")
    conversation.add_messages(ASKED)
    prompt = shown(template, conversation)
    assert "<|begin_assistant|>\n4\n<|end|>\n<|begin_user|>" in prompt
    assert "2 + 2" not in prompt
    assert [broken.cause for broken in conversation.breaks] == [BreakCause.THOUGHTS_DROPPED]


def test_a_header_that_the_model_samples_behind_results_is_no_part_of_the_answer() -> None:
    """DiffusionGemma: the prompt behind results does not begin the answer, but the answer's rendering has a header."""
    template = of(oracle("diffusion_gemma"))
    for said in ("<|turn>model\nIt is sunny.", "It is sunny."):
        conversation = begin(template)
        say(
            template,
            conversation,
            '<|tool_call>call:get_weather{place:<|"|>Quito<|"|>}<tool_call|>',
            "<|tool_response>",
        )
        conversation.add_results(["Sunny."])
        say(template, conversation, said, "<turn|>")
        assert conversation.last.parsed.content == "It is sunny."
        conversation.add_messages(ASKED)
        assert "<tool_response|><|turn>model\nIt is sunny.<turn|>" in shown(template, conversation)
        assert bool(conversation.breaks) == (not said.startswith("<|turn>"))


def test_a_template_with_thoughts_and_without_calls_is_served() -> None:
    made = made_of(
        "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content if m.role == 'assistant' }} {{ m.content }}</s>",
        "{% endfor %}assistant: ",
    )
    assert of(made).fields.thoughts == "reasoning_content"
    assert not of(made).fields.calls


@pytest.mark.parametrize("name", ["gptoss", "qwen3_vl", "qwen3_5_think", "qwen3", "gemma4", "deepseekv3"])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_a_system_message_in_the_middle_is_in_the_prompt_of_every_template(name: str, tools: Any) -> None:
    """gpt-oss's and Qwen3-VL's templates leave it out without an error, and Qwen3.5's refuses it."""
    made = oracle(name)
    template = of(made)
    first: dict[str, Any] = {"role": "system", "content": "Be brief."}
    conversation = begin(template, [first, *ASKED], tools)
    conversation.add_messages([{"role": "system", "content": "It is noon."}])
    assert shown(template, conversation).count("It is noon.") == 1
    say(template, conversation, made.spoken(ASKED, made.said("Sunny."), tools))
    conversation.add_messages([{"role": "system", "content": "It is one."}, {"role": "user", "content": "And now?"}])
    for text in ("Be brief.", "It is noon.", "Sunny.", "It is one.", "And now?"):
        assert shown(template, conversation).count(text) == 1
