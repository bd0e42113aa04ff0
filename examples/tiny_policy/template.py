"""The chat format: one Jinja template for everybody, and the same text as parts for training.

Prefix-stable: rendering a longer conversation only ever appends. An assistant's content is emitted verbatim, with its
`<tool_call>` text inside, so what was sampled is what the next prompt holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.tasks.tool_schemas import ToolSchema

TURN_END = "<|im_end|>"
PAD = "<|endoftext|>"
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

BEFORE_TOOLS = "# Tools\n\nThese functions can be called:\n<tools>"
AFTER_TOOLS = (
    "\n</tools>\n\nA call is one JSON object in tool_call tags:\n"
    '<tool_call>\n{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
)

TEMPLATE = r"""
{%- set first_is_system = messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if first_is_system and messages[0].content %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- BEFORE_TOOLS }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- AFTER_TOOLS + '<|im_end|>\n' }}
{%- elif first_is_system %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""


def chat_template() -> str:
    """Return the Jinja source for the model's folder."""
    filled = TEMPLATE.replace("BEFORE_TOOLS", _jinja_string(BEFORE_TOOLS)).replace(
        "AFTER_TOOLS", _jinja_string(AFTER_TOOLS)
    )
    return filled.strip() + "\n"


def _jinja_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


@dataclass(frozen=True)
class Setting:
    """The opening of a conversation: a system prompt (may be empty) and at least one tool."""

    system: str
    tools: tuple[ToolSchema, ...]


@dataclass(frozen=True)
class Message:
    role: str
    content: str
    trained: bool = False
    """Whether an assistant's message is trained on; deliberate mistakes are not."""

    def chat(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Part:
    text: str
    trained: bool


def opening(setting: Setting) -> str:
    system = setting.system + "\n\n" if setting.system else ""
    tools = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in setting.tools)
    return f"<|im_start|>system\n{system}{BEFORE_TOOLS}{tools}{AFTER_TOOLS}{TURN_END}\n"


def parts(messages: Sequence[Message]) -> list[Part]:
    """Return the text after the opening, split where the loss goes on and off, up to the last message's end token."""
    cut: list[Part] = []
    for message in messages:
        if message.role == "assistant":
            cut.append(Part(message.content + TURN_END, message.trained))
            continue
        body = message.content
        if message.role == "tool":
            body = f"<tool_response>\n{body}\n</tool_response>"
        # The newline that closes the assistant's turn was not sampled, so it belongs to the following part.
        before = "\n" if cut else ""
        cut.append(Part(f"{before}<|im_start|>user\n{body}{TURN_END}\n<|im_start|>assistant\n", False))
    return cut


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'
