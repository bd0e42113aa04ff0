"""The table of docs/gateway.md with the fields that each client sends. The gateway's own code decides what happens to each.

The fields are those that the released clients sent to a recording server, by default and with these options. Write the table
again with `python -m tests.gateway.apis.test_fields_by_client`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollyard.gateway.apis import chat, completions, messages, responses
from rollyard.gateway.app import APIS
from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.requests.sampling_overrides import LIMITS, PARALLEL, STOPS
from rollyard.kinds.rollout import Sampling

DOCS = Path(__file__).resolve().parents[3] / "docs" / "gateway.md"
BEGIN, END = "<!-- the fields of clients, from tests/gateway/apis/test_fields_by_client.py -->\n", "<!-- end -->\n"
SCHEMA = {
    "type": "object",
    "properties": {"good": {"type": "boolean"}},
    "required": ["good"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "description": "Add.", "parameters": SCHEMA, "strict": True}
TOOL, FLAT = {"type": "function", "function": FUNCTION}, {"type": "function", **FUNCTION}
CLAUDE_TOOL = {"name": "add", "description": "Add.", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": {"name": "V", "strict": True, "schema": SCHEMA}}
FLAT_FORMAT = {"type": "json_schema", "name": "V", "strict": True, "schema": SCHEMA}
NAMED = {"type": "function", "function": {"name": "add"}}
OWN = {
    "/v1/chat/completions": (chat.OWN_FIELDS, {"messages": [{"role": "user", "content": "x"}]}),
    "/v1/completions": (completions.OWN_FIELDS, {"prompt": "x"}),
    "/v1/responses": (responses.OWN_FIELDS, {"input": "x"}),
    "/v1/messages": (messages.OWN_FIELDS, {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}),
}
CHAT, TEXT, RESPONSES, MESSAGES = OWN
FORMS = ("response_format", "text.format", "output_config.format")
SAMPLED: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9}
PENALTIES: dict[str, Any] = {"presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"1": 2}}


@dataclass(frozen=True)
class Client:
    name: str
    api: str
    default: dict[str, Any] = field(default_factory=dict)
    """Fields of every call, beside the model and the conversation."""
    options: tuple[dict[str, Any], ...] = ()
    """Fields that one option adds."""


CLIENTS = [
    Client("openai 3.54", CHAT, {}, (
        {"tools": [TOOL]}, {"response_format": FORMAT}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"stop": "x"},
        {"stream": True, "stream_options": {"include_usage": True}}, SAMPLED, PENALTIES, {"seed": 1},
        {"max_completion_tokens": 9}, {"reasoning_effort": "low"}, {"verbosity": "low"}, {"store": True},
        {"functions": [FUNCTION]}, {"modalities": ["audio"]}, {"web_search_options": {}}, {"moderation": {"model": "x"}},
    )),
    Client("openai 3.54", RESPONSES, {}, (
        {"tools": [FLAT]}, {"text": {"format": FLAT_FORMAT}}, {"previous_response_id": "resp_1"}, {"store": False},
        {"include": ["message.output_text.logprobs"]}, {"include": ["reasoning.encrypted_content"]},
        {"reasoning": {"effort": "low", "summary": "auto"}}, {"conversation": "conv_1"}, {"background": True},
        {"truncation": "auto"}, {"prompt": {"id": "p"}}, {"tools": [{"type": "web_search"}]},
    )),
    Client("anthropic 2.12", MESSAGES, {"max_tokens": 9}, (
        {"tools": [CLAUDE_TOOL]}, {"tool_choice": {"type": "any"}, "tools": [CLAUDE_TOOL]},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, {"stop_sequences": ["x"]}, {"top_k": 3},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"output_config": {"effort": "low"}},
        {"cache_control": {"type": "ephemeral"}}, {"metadata": {"user_id": "u"}}, {"container": "c"},
        {"thread": {"type": "continue", "previous_message_id": "x"}}, {"inference_geo": "us"},
        {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    )),
    Client("LangChain 1.4 `ChatOpenAI`", CHAT, {}, (
        {"tools": [TOOL], "tool_choice": "required"}, {"response_format": FORMAT}, {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": NAMED, "parallel_tool_calls": False}, {"n": 2, "logprobs": True, "top_logprobs": 2},
        SAMPLED, PENALTIES, {"seed": 1}, {"stop": ["x"]}, {"max_completion_tokens": 9},
        {"stream": True, "stream_options": {"include_usage": True}}, {"reasoning_effort": "low"}, {"verbosity": "low"},
        {"service_tier": "auto"}, {"store": True},
    )),
    Client("LangChain 1.4 `ChatOpenAI`", RESPONSES, {}, (
        {"previous_response_id": "resp_1"}, {"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2},
        {"store": False}, {"reasoning": {"effort": "low", "summary": "auto"}}, {"truncation": "auto"},
        {"context_management": [{"type": "compaction"}]}, {"tools": [{"type": "web_search_preview"}]},
    )),
    Client("LangChain 1.4 `OpenAI`", TEXT, {
        "frequency_penalty": 0, "max_tokens": 256, "n": 1, "presence_penalty": 0, "temperature": 0.7, "top_p": 1,
    }, ({"n": 2, "best_of": 2}, {"logprobs": 2}, {"n": 1, "best_of": 2})),
    Client("LangChain 1.4 `ChatAnthropic`", MESSAGES, {"max_tokens": 4096}, (
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "tool", "name": "add"}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, SAMPLED, {"top_k": 3},
        {"stop_sequences": ["x"]}, {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"effort": "low"}}, {"inference_geo": "us"},
        {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]},
    )),
    Client("pydantic-ai 2.68", CHAT, {}, (
        {"tools": [TOOL], "tool_choice": "required"}, {"response_format": FORMAT}, {"response_format": {"type": "json_object"}},
        {"logprobs": True, "top_logprobs": 2}, SAMPLED, PENALTIES, {"seed": 1}, {"stop": ["x"]},
        {"max_completion_tokens": 9}, {"user": "u"}, {"prediction": {"type": "content", "content": "y"}},
        {"reasoning_effort": "low"}, {"service_tier": "default"}, {"store": True},
    )),
    Client("pydantic-ai 2.68", RESPONSES, {}, (
        {"text": {"format": FLAT_FORMAT}}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"store": False}, {"text": {"verbosity": "low"}}, {"reasoning": {"summary": "auto"}},
        {"include": ["web_search_call.action.sources"]}, {"truncation": "auto"}, {"background": True},
        {"conversation": "conv_1"},
    )),
    Client("pydantic-ai 2.68", MESSAGES, {"max_tokens": 16384}, (
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "any"}}, {"top_k": 3},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"metadata": {"user_id": "u"}},
        {"cache_control": {"type": "ephemeral", "ttl": "5m"}}, {"output_config": {"effort": "low"}}, {"container": "c"},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    )),
    Client("openai-agents 0.24", RESPONSES, {"include": [], "tools": []}, (
        {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False}, {"text": {"format": FLAT_FORMAT}},
        {"previous_response_id": "resp_1"}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"store": True}, SAMPLED, {"max_output_tokens": 9}, {"metadata": {"a": "b"}}, {"text": {"verbosity": "low"}},
        {"reasoning": {"effort": "low", "summary": "auto"}}, {"prompt_cache_retention": "24h"}, {"truncation": "auto"},
        {"conversation": "conv_1"}, {"context_management": [{"type": "compaction"}]}, {"tools": [{"type": "web_search"}]},
    )),
    Client("openai-agents 0.24", CHAT, {}, (
        {"tools": [TOOL]}, {"response_format": FORMAT}, {"logprobs": True, "top_logprobs": 2}, {"store": True},
    )),
    Client("litellm 1.106 `openai/…`", CHAT, {}, (
        {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"response_format": FORMAT}, {"seed": 1}, {"stream": True},
    )),
    Client("litellm 1.106 `openai/…`", RESPONSES, {}, ({"previous_response_id": "resp_1"},)),
    Client("litellm 1.106 `text-completion-openai/…`", TEXT, {}, ({"n": 2, "logprobs": 2},)),
    Client("litellm 1.106 `anthropic/…`", MESSAGES, {"max_tokens": 4096}, (
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "tool", "name": "add"}},
    )),
    Client("smolagents 1.26 `ToolCallingAgent`", CHAT, {
        "stop": ["Observation:", "Calling tools:"], "tool_choice": "required", "tools": [TOOL],
    }, ({"stream": True, "stream_options": {"include_usage": True}}, SAMPLED, {"max_tokens": 9}, {"n": 2}, {"logprobs": True})),
    Client("smolagents 1.26 `CodeAgent`", CHAT, {"stop": ["Observation:", "Calling tools:", "</code>"]}, (
        {"response_format": FORMAT}, SAMPLED, {"max_tokens": 9},
    )),
    Client("mini-swe-agent 2.4", CHAT, {"tools": [TOOL]}),
]  # fmt: skip


def refusal(client: Client, more: dict[str, Any]) -> str:
    """Return the gateway's message; empty if it accepts the call."""
    try:
        APIS[client.api]({"model": "m", **OWN[client.api][1], **client.default, **more})
    except GatewayError as error:
        return str(error)
    return ""


def parts(fields: dict[str, Any]) -> list[str]:
    """Names of fields. Objects that hold several settings are named with their settings."""
    nested = ("text", "output_config", "reasoning")
    pairs = ([f"{name}.{key}" for key in value] if name in nested else [name] for name, value in fields.items())
    return [name for pair in pairs for name in pair]


def carried_out(client: Client, name: str, value: Any) -> bool:
    if name == "include":
        return responses.LOGPROBS in value
    known = {*OWN[client.api][0], *LIMITS, *STOPS, PARALLEL, *Sampling.model_fields, *FORMS}
    return name in known


def code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def shown(fields: dict[str, Any], message: str) -> str:
    """Name what is refused: a tool, or the field that the message quotes, with its value if only this value is refused."""
    if message.startswith("a tool"):
        return f"a tool of type `{fields['tools'][0]['type']}`"
    name = message.partition("`")[2].partition("`")[0]
    value = fields.get(name)
    return f"`{name}`{' (true)' if value is True else ' (auto)' if value == 'auto' else ''}"


def row(client: Client) -> str:
    done, nothing, refused = [], [], []
    for fields in client.options:
        if message := refusal(client, fields):
            assert message.startswith(("this gateway cannot apply", "a tool of type", "`best_of`")), message
            advice = message.partition("; ")[2] or message.partition("` ")[2]
            refused.append(f"{shown(fields, message)}: {advice}")
        else:
            for name in parts(fields):
                (done if carried_out(client, name, next(iter(fields.values()))) else nothing).append(name)
    assert refusal(client, {}) == "", client
    default = code(parts(client.default)) or "–"
    cells = (
        client.name,
        f"`{client.api.removeprefix('/v1/')}`",
        default,
        code(done),
        code(nothing),
        "<br>".join(refused),
    )
    return f"| {' | '.join(cell or '–' for cell in cells)} |\n"


def table() -> str:
    head = "| client | API | sent with every call | carried out | accepted, without effect | refused: what to do |\n"
    return f"{head}|---|---|---|---|---|---|\n{''.join(map(row, CLIENTS))}"


def test_the_table_of_clients_is_what_the_gateway_does() -> None:
    told = DOCS.read_text().partition(BEGIN)[2].partition(END)[0]
    assert told == table(), "write it again: python -m tests.gateway.apis.test_fields_by_client"


if __name__ == "__main__":
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    DOCS.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
