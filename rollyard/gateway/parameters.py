"""What callers may ask of the sampling, and what becomes of it: mapped, passed over, or refused.

Nothing is passed over silently by chance: a field is in one of the lists here, belongs to an API's own reading, or is
refused with a word on what one can do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rollyard.gateway.refusal import bad_request
from rollyard.kinds.rollout import Sampling

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
"""Names of the most tokens of one turn; the first that is given counts."""
STOPS = ("stop", "stop_sequences")
OURS = ("logprobs", "extra")
"""Of `Sampling`, what means something else to these APIs, or is the trainer's to set."""
IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction", "reasoning_effort", "reasoning", "thinking", "verbosity", "include", "truncation", "betas",
    "context_management", "output_config", "container", "inference_geo", "client_metadata", "cache_control", "extra_headers",
    "skip_special_tokens", "spaces_between_special_tokens", "priority", "request_id", "return_token_ids", "mcp_servers",
})  # fmt: skip
"""Taken and passed over: they name the caller, save costs elsewhere, or ask for effort that a policy's template decides."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "stop": ([], ""),
    "stop_sequences": ([],),
    "stop_token_ids": ([],),
    "ignore_eos": (False,),
    "response_format": ({"type": "text"},),
    "text": ({}, {"format": {"type": "text"}}),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "web_search_options": (),
    "audio": (),
    "background": (False,),
    "previous_response_id": (),
    "conversation": (),
    "max_tool_calls": (),
    "top_a": (0,),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Fields that change what is sampled in ways that are not offered; taken at these values and null, which change nothing."""
ADVICE = {
    "n": "ask as often as you need answers",
    "response_format": "say in the prompt what form you want",
    "text": "say in the prompt what form you want",
    "previous_response_id": "send the whole conversation in `input`",
    "conversation": "send the whole conversation in `input`",
    "logprobs": "the trajectory has the logprob of every sampled token",
    "functions": "use `tools`",
}


MAX_STOPS, MAX_STOP = 32, 256
"""Each piece of a stream is searched for all of them."""


@dataclass(frozen=True)
class Wanted:
    """How the caller wants to sample; a session may have its own ideas."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of `Sampling`, those that were given."""
    parallel: bool = True
    """Whether more than one tool call a turn is welcome."""


def read_wanted(body: Mapping[str, Any], own: Collection[str]) -> Wanted:
    """Everything of `body` but `own`, the fields that the API reads itself. Raises Refusal by the first wrong field."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in own or name in IGNORED or value is None or name == "parallel_tool_calls" or name in LIMITS:
            continue
        if _neutral(name, value):
            continue
        if name in STOPS:
            fields["stop"] = _stops(name, value)
        elif name in Sampling.model_fields and name not in OURS:
            fields[name] = value
        else:
            raise _refused(name)
    limit = next((body[name] for name in LIMITS if body.get(name) is not None), None)
    if limit is not None:
        fields["max_tokens"] = limit
    # The validated value: "10" is a number to pydantic, and none to min().
    read = _validated(fields).model_dump(include=set(fields))
    return Wanted(read, parallel=body.get("parallel_tool_calls") is not False)


def merged(wanted: Wanted, own: Sampling, *, fixed: bool) -> Sampling:
    """What a session samples with. `fixed`: its own sampling holds; the caller may only end turns earlier. Raises Refusal."""
    fields = dict(wanted.fields)
    limit = min(own.max_tokens, fields.pop("max_tokens", own.max_tokens))
    if own.stop or fields.get("stop"):
        fields["stop"] = list(dict.fromkeys([*(own.stop or ()), *(fields.get("stop") or ())]))
    if fixed:
        fields = {name: value for name, value in fields.items() if name == "stop"}
    both = {**own.model_dump(), **fields, "max_tokens": limit}
    if both["min_tokens"] is not None:
        both["min_tokens"] = min(both["min_tokens"], limit)  # one of the two may be the caller's
    return _validated(both)


def _neutral(name: str, value: Any) -> bool:
    # 1 == True in Python, and `logprobs: 1` is not what `logprobs: true` is
    return any(value == plain and isinstance(value, bool) == isinstance(plain, bool) for plain in NEUTRAL.get(name, ()))


def _stops(name: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request(f"`{name}` must be a text or a list of texts", param=name)
    if len(stops) > MAX_STOPS or max(map(len, stops), default=0) > MAX_STOP:
        raise bad_request(f"`{name}` may have {MAX_STOPS} texts of {MAX_STOP} characters", param=name)
    return stops


def _validated(fields: Mapping[str, Any]) -> Sampling:
    try:
        return Sampling.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "sampling"
        raise bad_request(f"`{name}`: {first['msg']}", param=name) from None


def _refused(name: str) -> Exception:
    shown = re.sub(r"[^\w.-]", "?", name)[:64]
    advice = ADVICE.get(name, "leave it out")
    return bad_request(f"`{shown}` cannot be honoured by this gateway; {advice}", param=shown)
