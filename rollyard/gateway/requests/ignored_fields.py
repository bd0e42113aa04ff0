"""Request fields that this gateway does not implement. For each field, this module lists the values that may be
ignored, the reason why they change nothing, and the advice for all other values. For some fields, no value may be
ignored.

A field is implemented (an API reads it, or it is part of `Sampling`), accepted by this list, or refused. Null is always
accepted. docs/gateway.md has the same list as a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ANY = object()


@dataclass(frozen=True)
class FieldRule:
    why: str
    """Reason why the accepted values change nothing; empty if there are none, or if `fields` has the rules."""
    values: tuple[Any, ...] = (ANY,)
    advice: str = "leave it out"
    """Advice for other values."""
    fields: Mapping[str, FieldRule] | None = None
    """Rules for the fields of an object."""
    items: Collection[str] | None = None
    """Accepted items of a list."""


def refused_field(advice: str = "leave it out") -> FieldRule:
    return FieldRule("", (), advice)


def neutral_field(*values: Any, advice: str = "leave it out") -> FieldRule:
    return FieldRule("the API's own default", values, advice)


CALLER = FieldRule("names the caller; no answer depends on it")
CACHE = FieldRule("caching changes no token; engines cache prefixes themselves")
BILLING = FieldRule("nothing is billed")
EFFORT = FieldRule("a hint; the policy and its template decide how much it thinks and writes")
NO_TOOLS = FieldRule("limits tools that a provider runs; this gateway has none")
FORM = FieldRule("read by `constraint_fields`")
WHOLE = "send the whole conversation with each call"
INCLUDED_ITEMS = (
    "message.output_text.logprobs",
    "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results", "file_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
)  # fmt: skip

ACCEPTED: Mapping[str, FieldRule] = {
    # caller identity and billing
    "user": CALLER,
    "metadata": CALLER,
    "client_metadata": CALLER,
    "safety_identifier": CALLER,
    "user_profile_id": CALLER,
    "workspace_id": CALLER,
    "request_id": CALLER,
    "billing_policy": BILLING,
    "fallback_credit_token": BILLING,
    "prompt_cache_key": CACHE,
    "prompt_cache_retention": CACHE,
    "prompt_cache_options": CACHE,
    "cache_control": CACHE,
    "prediction": FieldRule("a guess of the answer; it changes no token"),
    "priority": FieldRule("the order of requests; no token depends on it"),
    "service_tier": neutral_field("auto", "default", "standard_only", advice="there is one tier: `auto`"),
    "speed": neutral_field("standard"),
    "betas": FieldRule("names features; each feature has fields of its own"),
    "extra_headers": FieldRule("meant for the client library"),
    # reasoning effort
    "reasoning_effort": EFFORT,
    "verbosity": EFFORT,
    "thinking": FieldRule("a hint; the template decides how a policy thinks, and its thoughts are part of the text"),
    "reasoning": FieldRule(
        "",
        fields={
            "effort": EFFORT,
            "summary": FieldRule("thoughts are part of the text"),
            "generate_summary": FieldRule("thoughts are part of the text"),
            "context": neutral_field("auto", advice="send the thoughts that the policy should see as part of the text"),
            "mode": neutral_field("standard"),
        },
    ),
    "output_config": FieldRule(
        "", fields={"effort": EFFORT, "format": FORM, "task_budget": refused_field("use `max_tokens`")}
    ),
    # form of the output
    "response_format": FORM,
    "text": FieldRule("", fields={"format": FORM, "verbosity": EFFORT}),
    "modalities": neutral_field(["text"]),
    "audio": refused_field(),
    "image": refused_field(),
    "n": neutral_field(1, advice="make one call for each answer"),
    "best_of": neutral_field(1, advice="make one call for each answer"),
    "echo": neutral_field(False),
    "suffix": neutral_field(""),
    "logprobs": neutral_field(False, advice="the trajectory has the logprob of every sampled token"),
    "top_logprobs": neutral_field(0, advice="the trajectory has the logprob of every sampled token"),
    "prompt_logprobs": neutral_field(0),
    "return_token_ids": neutral_field(False, advice="the trajectory has the ids"),
    "skip_special_tokens": neutral_field(True),
    "spaces_between_special_tokens": neutral_field(True),
    "include": FieldRule(
        "the gateway returns the logprobs, and never the items of the other parts", (), "leave out unknown parts",
        items=INCLUDED_ITEMS,
    ),
    # sampling parameters, at the values that change nothing
    "frequency_penalty": neutral_field(0),
    "presence_penalty": neutral_field(0),
    "repetition_penalty": neutral_field(1),
    "length_penalty": neutral_field(1),
    "min_p": neutral_field(0),
    "min_tokens": neutral_field(0),
    "top_a": neutral_field(0),
    "logit_bias": neutral_field({}),
    "stop": neutral_field([], ""),
    "stop_sequences": neutral_field([]),
    "stop_token_ids": neutral_field([]),
    "ignore_eos": neutral_field(False),
    "use_beam_search": neutral_field(False),
    "guided_json": FORM,
    "guided_json_object": FORM,
    "guided_regex": FORM,
    "guided_choice": FORM,
    "guided_grammar": FORM,
    "structured_outputs": FORM,
    # the prompt
    "chat_template": refused_field("the policy's own template is used"),
    "chat_template_kwargs": neutral_field({}, advice="the policy's own template is used without changes"),
    "add_generation_prompt": neutral_field(True),
    "continue_final_message": neutral_field(False),
    "prompt": refused_field("write the whole prompt into `input`"),
    "truncation": neutral_field("disabled", advice="shorten the conversation yourself; one that does not fit gets a 400"),
    "context_management": neutral_field(
        {}, [], {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        advice="shorten the conversation yourself",
    ),
    "compaction": refused_field("shorten the conversation yourself"),
    # tools that a provider would run itself
    "functions": neutral_field([], advice="use `tools`"),
    "function_call": neutral_field("auto", "none", advice="use `tools`"),
    "web_search_options": refused_field("offer a tool of your own"),
    "mcp_servers": neutral_field([], advice="offer their tools as your own"),
    "container": refused_field("offer a tool of your own"),
    "max_tool_calls": NO_TOOLS,
    # state and services of a provider
    "store": neutral_field(False, advice="leave it out: the session's trajectory has every turn"),
    "previous_response_id": refused_field(WHOLE),
    "conversation": refused_field(f"{WHOLE}, or name the earlier response in `previous_response_id`"),
    "thread": refused_field(WHOLE),
    "background": neutral_field(False, advice="wait for the answer, or stream it"),
    "background_options": refused_field("wait for the answer, or stream it"),
    "fallbacks": FieldRule("other models for requests that a provider declines; this gateway declines none"),
    "moderation": refused_field("moderate the text yourself"),
    "diagnostics": refused_field(),
    "inference_geo": refused_field("the pool's engines answer, wherever they run"),
    "access_programs": refused_field(),
}  # fmt: skip
TOOL: Mapping[str, FieldRule] = {
    "strict": FieldRule("forced calls follow the tool's schema anyway; the caller checks the arguments of others"),
    "cache_control": CACHE,
    "eager_input_streaming": FieldRule("a tool call is sent in one piece after its turn"),
    "allowed_callers": neutral_field(["direct"]),
    "defer_loading": neutral_field(False, advice="offer the tools that the call may use"),
    "input_examples": neutral_field([], advice="write them into the description"),
    "output_schema": FieldRule("describes a result that the caller produces"),
    "annotations": FieldRule("for programs that show the tool to people"),
}
"""Accepted fields of a tool beside name, description and schema."""
STREAM: Mapping[str, FieldRule] = {
    "include_obfuscation": neutral_field(False),
    "continuous_usage_stats": neutral_field(False, advice="use `include_usage`"),
}


def find_rejected(rules: Mapping[str, FieldRule], name: str, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, advice) for everything in `value` that is not accepted. `name` must have a rule."""
    rule, path = rules[name], f"{path}{name}"
    if value is None or any(accepted is ANY or _is_accepted(value, accepted) for accepted in _values(rule)):
        return
    if rule.fields is not None and isinstance(value, dict):
        for key, one in value.items():
            if key in rule.fields:
                yield from find_rejected(rule.fields, key, one, f"{path}.")
            elif one is not None:
                yield f"{path}.{key}", "leave it out"
    elif rule.items is not None and isinstance(value, list):
        yield from ((path, f"{rule.advice}: {one!r}"[:200]) for one in value if one not in rule.items)
    else:
        yield path, rule.advice


def _values(rule: FieldRule) -> tuple[Any, ...]:
    return () if rule.fields is not None or rule.items is not None else rule.values


def _is_accepted(value: Any, accepted: Any) -> bool:
    # 1 == True in Python, but `logprobs: 1` does not mean `logprobs: true`
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)
