"""Request fields that this gateway reads and does nothing about: which of their values it accepts, and why that is harmless.

A field is done (an API reads it, or it is part of `Sampling`), accepted by this list, or refused. Null is always accepted.
docs/gateway.md has the same as a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ANY = object()


@dataclass(frozen=True)
class Accepted:
    why: str
    """Reason why these values change nothing; for a field that is only refused, empty."""
    values: tuple[Any, ...] = (ANY,)
    advice: str = "leave it out"
    """For other values."""
    fields: Mapping[str, Accepted] | None = None
    """Rule for an object: each field by its own rule."""
    items: Collection[str] | None = None
    """Rule for a list: what it may hold."""


def refused(advice: str = "leave it out") -> Accepted:
    return Accepted("", (), advice)


def neutral(*values: Any, advice: str = "leave it out") -> Accepted:
    return Accepted("the API's own default", values, advice)


CALLER = Accepted("names the caller; no answer depends on it")
CACHE = Accepted("caching changes no token; engines cache prefixes themselves")
BILLING = Accepted("nothing is billed")
EFFORT = Accepted("a hint; the policy and its template decide how much it thinks and writes")
NO_TOOLS = Accepted("limits tools that a provider runs; this gateway has none")
FORM = "sampling is not constrained: describe the format in the prompt, and parse the text"
WHOLE = "the gateway keeps nothing between calls: send the whole conversation with each"
PLAIN_TEXT = ({"type": "text"},)
HIDDEN_ITEMS = (
    "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results", "file_search_call.results",
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
)  # fmt: skip

ACCEPTED: Mapping[str, Accepted] = {
    # who asks, and what it costs
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
    "prediction": Accepted("a guess of the answer; it changes no token"),
    "priority": Accepted("the order of requests; no token depends on it"),
    "service_tier": neutral("auto", "default", "standard_only", advice="there is one tier: `auto`"),
    "speed": neutral("standard"),
    "betas": Accepted("names features; each feature has fields of its own"),
    "extra_headers": Accepted("meant for the client library"),
    # how much to think
    "reasoning_effort": EFFORT,
    "verbosity": EFFORT,
    "thinking": Accepted("a hint; the template decides how a policy thinks, and its thoughts are part of the text"),
    "reasoning": Accepted(
        "",
        fields={
            "effort": EFFORT,
            "summary": Accepted("thoughts are part of the text"),
            "generate_summary": Accepted("thoughts are part of the text"),
            "context": neutral("auto", advice="send the thoughts that the policy should see as part of the text"),
            "mode": neutral("standard"),
        },
    ),
    "output_config": Accepted(
        "", fields={"effort": EFFORT, "format": refused(FORM), "task_budget": refused("use `max_tokens`")}
    ),
    # the form of what is said
    "response_format": neutral(*PLAIN_TEXT, advice=FORM),
    "text": Accepted("", fields={"format": neutral(*PLAIN_TEXT, advice=FORM), "verbosity": EFFORT}),
    "modalities": neutral(["text"]),
    "audio": refused(),
    "image": refused(),
    "n": neutral(1, advice="make one call for each answer"),
    "best_of": neutral(1, advice="make one call for each answer"),
    "echo": neutral(False),
    "suffix": neutral(""),
    "logprobs": neutral(False, advice="the trajectory has the logprob of every sampled token"),
    "top_logprobs": neutral(0, advice="the trajectory has the logprob of every sampled token"),
    "prompt_logprobs": neutral(0),
    "return_token_ids": neutral(False, advice="the trajectory has the ids"),
    "skip_special_tokens": neutral(True),
    "spaces_between_special_tokens": neutral(True),
    "include": Accepted(
        "parts of items that this gateway never returns", (), "leave out unknown parts", items=HIDDEN_ITEMS
    ),
    # what is sampled, at the values that change nothing
    "frequency_penalty": neutral(0),
    "presence_penalty": neutral(0),
    "repetition_penalty": neutral(1),
    "length_penalty": neutral(1),
    "min_p": neutral(0),
    "min_tokens": neutral(0),
    "top_a": neutral(0),
    "logit_bias": neutral({}),
    "stop": neutral([], ""),
    "stop_sequences": neutral([]),
    "stop_token_ids": neutral([]),
    "ignore_eos": neutral(False),
    "use_beam_search": neutral(False),
    "guided_json": refused(FORM),
    "guided_regex": refused(FORM),
    "guided_choice": refused(FORM),
    "guided_grammar": refused(FORM),
    "structured_outputs": refused(FORM),
    # the prompt
    "chat_template": refused("the policy's own template is used"),
    "chat_template_kwargs": neutral({}, advice="the policy's own template is used without changes"),
    "add_generation_prompt": neutral(True),
    "continue_final_message": neutral(False),
    "prompt": refused("write the whole prompt into `input`"),
    "truncation": neutral("disabled", advice="shorten the conversation yourself; one that does not fit gets a 400"),
    "context_management": neutral(
        {}, [], {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        advice="shorten the conversation yourself",
    ),
    "compaction": refused("shorten the conversation yourself"),
    # tools that a provider would run
    "functions": neutral([], advice="use `tools`"),
    "function_call": neutral("auto", "none", advice="use `tools`"),
    "web_search_options": refused("offer a tool of your own"),
    "mcp_servers": neutral([], advice="offer their tools as your own"),
    "container": refused("offer a tool of your own"),
    "max_tool_calls": NO_TOOLS,
    # state and services of a provider
    "store": neutral(False, advice="nothing is stored for retrieval; the session's trajectory has every turn"),
    "previous_response_id": refused(WHOLE),
    "conversation": refused(WHOLE),
    "thread": refused(WHOLE),
    "background": neutral(False, advice="wait for the answer, or stream it"),
    "background_options": refused("wait for the answer, or stream it"),
    "fallbacks": Accepted("other models for requests that a provider declines; this gateway declines none"),
    "moderation": refused("moderate the text yourself"),
    "diagnostics": refused(),
    "inference_geo": refused("the pool's engines answer, wherever they run"),
    "access_programs": refused(),
}  # fmt: skip
TOOL: Mapping[str, Accepted] = {
    "strict": Accepted("arguments are as the policy sampled them; the caller checks them"),
    "cache_control": CACHE,
    "eager_input_streaming": Accepted("a tool call is sent in one piece after its turn"),
    "allowed_callers": neutral(["direct"]),
    "defer_loading": neutral(False, advice="offer the tools that the call may use"),
    "input_examples": neutral([], advice="write them into the description"),
    "output_schema": Accepted("describes a result that the caller produces"),
    "annotations": Accepted("for programs that show the tool to people"),
}
"""Beside name, description and schema."""
STREAM: Mapping[str, Accepted] = {
    "include_obfuscation": neutral(False),
    "continuous_usage_stats": neutral(False, advice="use `include_usage`"),
}


def wrong(rules: Mapping[str, Accepted], name: str, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(the field, advice) of everything in `value` that is not accepted. A name without a rule has to be looked up before."""
    rule, path = rules[name], f"{path}{name}"
    if value is None or any(accepted is ANY or _same(value, accepted) for accepted in _values(rule)):
        return
    if rule.fields is not None and isinstance(value, dict):
        for key, one in value.items():
            if key in rule.fields:
                yield from wrong(rule.fields, key, one, f"{path}.")
            elif one is not None:
                yield f"{path}.{key}", "leave it out"
    elif rule.items is not None and isinstance(value, list):
        yield from ((path, f"{rule.advice}: {one!r}"[:200]) for one in value if one not in rule.items)
    else:
        yield path, rule.advice


def _values(rule: Accepted) -> tuple[Any, ...]:
    return () if rule.fields is not None or rule.items is not None else rule.values


def _same(value: Any, accepted: Any) -> bool:
    # 1 == True in Python, and `logprobs: 1` is not what `logprobs: true` is
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)
