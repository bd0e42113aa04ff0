"""Chat templates in the shapes of common families, and each family's form of thoughts, calls and turn ends.

Written for these tests. They keep the parts of the families that matter for a conversation as ids: headers, the role of
tool results, generation prompts, dropped text and refusals.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHATML_HEAD = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}
Write <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""

QWEN25 = (
    CHATML_HEAD
    + """
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- elif not (loop.first and m.role == 'system') %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
)

QWEN3 = (
    CHATML_HEAD
    + """
{%- set ns = namespace(query=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set thoughts, content = '', m.content %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.query and (thoughts or loop.last) %}
            {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- elif not (loop.first and m.role == 'system') %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
)

QWEN3_NOT_THINKING = QWEN3.replace(
    "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}",
)
assert QWEN3_NOT_THINKING != QWEN3

LLAMA3 = """
{{- bos_token }}
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% endmacro %}
{{- head('system') + 'Environment: ipython\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}<|eot_id|>
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('only single calls') }}{% endif %}
        {{- head('assistant') + m.tool_calls[0].function | tojson + '<|eot_id|>' }}
    {%- elif m.role == 'tool' %}
        {{- head('ipython') + m.content | tojson + '<|eot_id|>' }}
    {%- elif not (loop.first and m.role == 'system') %}
        {{- head(m.role) }}
        {%- if loop.first and tools %}{{ 'Functions: ' + tools | tojson + '\\n' }}{% endif %}
        {{- m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}"""

MISTRAL = """
{{- bos_token }}
{%- set ns = namespace(turn=0, last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
    {%- if (m.role == 'user' or m.role == 'assistant' and not m.tool_calls) %}
        {%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
        {%- set ns.turn = ns.turn + 1 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
        {{- '[INST] ' + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
            {{- ({'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id}) | tojson }}
            {{- ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS] ' + ({'content': m.content, 'call_id': m.tool_call_id}) | tojson + '[/TOOL_RESULTS]' }}
    {%- elif m.role == 'system' and loop.first %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- else %}{{ raise_exception('a system message comes first') }}
    {%- endif %}
{%- endfor %}"""

DEEPSEEK_R1 = """
{%- set ns = namespace(system='', tool=false) %}
{%- for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system + m.content %}{% endif %}{% endfor %}
{{- bos_token + ns.system }}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- ('<｜tool▁outputs▁end｜>' if ns.tool else '') + '<｜User｜>' + m.content }}
        {%- set ns.tool = false %}
    {%- elif m.role == 'assistant' %}
        {%- set content = m.content.split('</think>')[-1] %}
        {{- ('<｜tool▁outputs▁end｜>' if ns.tool else '<｜Assistant｜>') + content + eos_token }}
        {%- set ns.tool = false %}
    {%- elif m.role == 'tool' %}
        {{- '' if ns.tool else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
        {%- set ns.tool = true %}
    {%- endif %}
{%- endfor %}
{%- if ns.tool %}{{ '<｜tool▁outputs▁end｜>' }}
{%- elif add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""

GLM = """[gMASK]<sop>
{%- if tools %}<|system|>
Tools: {{ tools | tojson }} <arg_key> <arg_value>{% endif %}
{%- set ns = namespace(query=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '<|user|>\\n' + m.content }}
    {%- elif m.role == 'assistant' %}
        {%- set thoughts, content = '', m.content %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|assistant|>\\n<think>' + (thoughts.strip() if loop.index0 > ns.query else '') + '</think>' }}
        {{- '\\n' + content.strip() if content.strip() }}
    {%- elif m.role == 'tool' %}
        {{- '<|observation|>' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
    {%- else %}{{ '<|system|>\\n' + m.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

GPT_OSS = """
{%- set ns = namespace(call='') %}
{%- if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and 'tool_calls' in m %}
        {%- set future = namespace(final=false) %}
        {%- for later in messages[loop.index:] %}
            {%- if later.role == 'assistant' and 'tool_calls' not in later %}{% set future.final = true %}{% endif %}
        {%- endfor %}
        {%- if m.thinking and not future.final %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
        {%- endif %}
        {%- for call in m.tool_calls %}
            {{- '<|start|>assistant<|channel|>commentary to=functions.' + call.function.name }}
            {{- ' <|constrain|>json<|message|>' + call.function.arguments | tojson + '<|call|>' }}
        {%- endfor %}
        {%- set ns.call = m.tool_calls[0].function.name %}
    {%- elif m.role == 'assistant' %}
        {%- if '<|channel|>' in m.content %}{{ raise_exception('channels belong in fields') }}{% endif %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
        {%- set ns.call = '' %}
    {%- elif m.role == 'tool' %}
        {%- if not ns.call %}{{ raise_exception('a result follows a call') }}{% endif %}
        {{- '<|start|>functions.' + ns.call + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- m.content | tojson + '<|end|>' }}
    {%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Said:
    """One turn as the rules see it."""

    text: str
    calls: int
    thoughts: bool
    after: str
    """Role of the message that it answers: `user` or `tool`."""


@dataclass(frozen=True)
class Family:
    name: str
    template: str
    special: list[str]
    """Special tokens, which are never split."""
    stops: list[str]
    parser: str
    thoughts: Callable[[str], str]
    """Beginning of a turn with thoughts; empty for families without thoughts."""
    calls: Callable[[list[Call]], str]
    breaks: Callable[[list[Said], str], bool]
    """The rule, by the turns so far and the role of the added message: whether the next prompt breaks the prefix."""
    answer: Callable[[str], str] = str
    most_calls: int = 3
    systems: bool = True
    """Whether a system message may come later."""
    spelling: Callable[[str], str] = str
    """The template's spelling of a turn that it gets as text."""


def since_user(said: list[Said]) -> list[Said]:
    """Return the turns after the newest user message."""
    first = max((i for i, turn in enumerate(said) if turn.after == "user"), default=0)
    return said[first:]


def hermes_calls(calls: list[Call]) -> str:
    return "\n".join(
        "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
        for name, arguments in calls
    )


def llama_calls(calls: list[Call]) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)


def mistral_calls(calls: list[Call]) -> str:
    return "[TOOL_CALLS] " + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def deepseek_calls(calls: list[Call]) -> str:
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(each)}<｜tool▁calls▁end｜>"


def glm_calls(calls: list[Call]) -> str:
    def pairs(arguments: dict[str, Any]) -> str:
        return "\n".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in arguments.items()
        )

    return "\n".join(f"<tool_call>{name}\n{pairs(arguments)}\n</tool_call>" for name, arguments in calls)


def harmony_calls(calls: list[Call]) -> str:
    each = (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"
        for name, arguments in calls
    )
    return "<|call|><|start|>assistant".join(each)


def qwen3_breaks(said: list[Said], added: str) -> bool:
    """A user message removes the thoughts of earlier answers."""
    return added == "user" and any(turn.thoughts for turn in since_user(said))


def r1_breaks(said: list[Said], added: str) -> bool:
    """Thoughts and their opening tag are never rendered again; system messages are collected at the front."""
    return added == "system" or said[-1].after != "tool" or said[-1].thoughts


def glm_breaks(said: list[Said], added: str) -> bool:
    """An answer without thoughts gets empty ones; a user message empties existing ones."""
    return not said[-1].thoughts or (added == "user" and any(turn.thoughts for turn in since_user(said)))


def gpt_oss_breaks(said: list[Said], added: str) -> bool:
    """A final answer removes all thoughts before it. A message that is neither call nor final is rendered as a final one."""
    if said[-1].calls:
        return False
    finals = [i for i, turn in enumerate(said[:-1]) if not turn.calls]
    since_final = said[finals[-1] + 1 if finals else 0 :]
    return any(turn.thoughts for turn in since_final) or not said[-1].text.startswith("<|channel|>final<|message|>")


def qwen3_spelling(text: str) -> str:
    thoughts, ends, answer = text.partition("</think>")
    if not ends:
        return text
    thoughts = thoughts.rstrip("\n").split("<think>")[-1].lstrip("\n")
    return think(thoughts) + answer.split("</think>")[-1].lstrip("\n") if thoughts else answer


def glm_spelling(text: str) -> str:
    thoughts, ends, answer = text.partition("</think>")
    if not ends:
        return text.strip()
    thoughts, answer = thoughts.split("<think>")[-1].strip(), answer.split("</think>")[-1].strip()
    return f"\n<think>{thoughts}</think>" + ("\n" + answer if answer else "")


def think(thoughts: str) -> str:
    return f"<think>\n{thoughts}\n</think>\n\n"


CHATML_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"]
DEEPSEEK_TOKENS = [
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
]
MISTRAL_TOKENS = [
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
]
LLAMA_TOKENS = [
    *("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
]
GLM_TOKENS = [
    *("<|endoftext|>", "<|user|>", "<|observation|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<think>"),
    *("</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
]
HARMONY_TOKENS = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"]

FAMILIES = [
    Family(
        "Qwen2.5", QWEN25, CHATML_TOKENS, ["<|im_end|>", "<|endoftext|>"], "hermes", lambda _: "", hermes_calls,
        lambda said, added: False,
    ),
    Family(
        "Qwen3", QWEN3, [*CHATML_TOKENS, "<think>", "</think>"], ["<|im_end|>", "<|endoftext|>"], "hermes", think,
        hermes_calls, qwen3_breaks, spelling=qwen3_spelling,
    ),
    Family(
        "Qwen3 not thinking", QWEN3_NOT_THINKING, [*CHATML_TOKENS, "<think>", "</think>"], ["<|im_end|>"], "hermes",
        lambda _: "", hermes_calls, lambda said, added: True, spelling=qwen3_spelling,
    ),
    Family(
        "Llama 3", LLAMA3, LLAMA_TOKENS, ["<|eot_id|>", "<|eom_id|>"], "llama3_json", lambda _: "", llama_calls,
        lambda said, added: False, spelling=str.strip,
    ),
    Family(
        "Mistral", MISTRAL, MISTRAL_TOKENS, ["</s>"], "mistral", lambda _: "", mistral_calls,
        lambda said, added: added == "user", systems=False,
    ),
    Family(
        "DeepSeek R1", DEEPSEEK_R1, DEEPSEEK_TOKENS, ["<｜end▁of▁sentence｜>"], "deepseek",
        lambda thoughts: f"{thoughts}\n</think>\n\n", deepseek_calls, r1_breaks,
    ),
    Family(
        "GLM 4.5", GLM, GLM_TOKENS, ["<|endoftext|>", "<|user|>", "<|observation|>"], "glm",
        lambda thoughts: f"\n<think>{thoughts}</think>\n", glm_calls, glm_breaks,
        spelling=glm_spelling,
    ),
    Family(
        "gpt-oss", GPT_OSS, HARMONY_TOKENS, ["<|return|>", "<|call|>"], "harmony",
        lambda thoughts: f"<|channel|>analysis<|message|>{thoughts}<|end|><|start|>assistant", harmony_calls,
        gpt_oss_breaks, answer=lambda text: f"<|channel|>final<|message|>{text}", most_calls=1,
    ),
]  # fmt: skip
