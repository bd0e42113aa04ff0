"""Reads the sampling parameters of callers.

Each field of a request has one of four effects. The API reads the field, the field becomes part of the sampling, the
list of `ignored_fields` accepts its value, or the request is refused with advice.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rollyard.gateway.requests.call_errors import GatewayError, bad_request
from rollyard.gateway.requests.constraint_fields import read_constraint
from rollyard.gateway.requests.ignored_fields import ACCEPTED, FieldRule, find_rejected
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.constraint import Constraint
from rollyard.tokens.endpoint_dialects import MAX_TOP_LOGPROBS

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
"""Names for the greatest number of tokens in one turn. The first of these names that has a value is used."""
STOPS = ("stop", "stop_sequences")
OWN_RULES = ("logprobs", "extra")
"""Fields of `Sampling` that have another meaning in these APIs, or that only the trainer may set."""
PARALLEL = "parallel_tool_calls"
MAX_CHOICES = 128
"""Greatest `n`, as in OpenAI's API."""
MAX_STOPS, MAX_STOP = 32, 256
"""Greatest number of stop strings, and greatest length of each in characters. Every piece of a stream is searched for
all of them."""


@dataclass(frozen=True)
class SamplingOverrides:
    """The caller's sampling parameters. The session's own parameters may override them."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Sampling` that the caller set."""
    parallel_tool_calls: bool = True
    """Whether a turn may contain more than one tool call."""
    choices: int = 1
    """Number of turns to sample after the prompt."""
    top_logprobs: int | None = None
    """Number of the likeliest tokens to report beside each sampled token; None: report no logprobs."""
    constraint: Constraint | None = None
    """Form of the answer. The session's own parameters do not change it."""


def read_overrides(body: Mapping[str, Any], own: Collection[str]) -> SamplingOverrides:
    """Parse all fields of `body` except `own`, which the API itself reads. Raises GatewayError for the first wrong field."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in own or name in (PARALLEL, *LIMITS) or _check_value(name, value):
            continue
        if name in STOPS:
            fields["stop"] = _check_stops(name, value)
        elif name in Sampling.model_fields and name not in OWN_RULES:
            fields[name] = value
        else:
            raise _unknown_field(name, value, ACCEPTED, (*own, PARALLEL, *LIMITS, *Sampling.model_fields))
    limit = next((body[name] for name in LIMITS if body.get(name) is not None), None)
    if limit is not None:
        fields["max_tokens"] = limit
    # Take the validated values: pydantic accepts "10" as a number, but min() does not.
    read = _validate(fields).model_dump(include=set(fields))
    parallel = body.get(PARALLEL) is not False
    return SamplingOverrides(read, parallel_tool_calls=parallel, constraint=read_constraint(body))


def read_choices(body: Mapping[str, Any]) -> int:
    """Return `n`, the number of turns to sample after the prompt."""
    count = body.get("n")
    if count is None:
        return 1
    if type(count) is not int or not 1 <= count <= MAX_CHOICES:
        raise bad_request(f"`n` must be a whole number from 1 to {MAX_CHOICES}", param="n")
    return count


def read_top_logprobs(body: Mapping[str, Any], name: str) -> int:
    """Return the number of likeliest tokens that the field `name` requests."""
    count = body.get(name)
    if count is None:
        return 0
    if type(count) is not int or not 0 <= count <= MAX_TOP_LOGPROBS:
        raise bad_request(f"`{name}` must be a whole number from 0 to {MAX_TOP_LOGPROBS}", param=name)
    return count


def merge_sampling(overrides: SamplingOverrides, own: Sampling, *, fixed: bool) -> Sampling:
    """Return the sampling of a call. `fixed`: the session's own values are used, and the caller may only shorten turns.
    Raises GatewayError."""
    fields = dict(overrides.fields)
    limit = min(own.max_tokens, fields.pop("max_tokens", own.max_tokens))
    if own.stop or fields.get("stop"):
        fields["stop"] = list(dict.fromkeys([*(own.stop or ()), *(fields.get("stop") or ())]))
    if fixed:
        fields = {name: value for name, value in fields.items() if name == "stop"}
    both = {**own.model_dump(), **fields, "max_tokens": limit}
    if both["min_tokens"] is not None:
        both["min_tokens"] = min(both["min_tokens"], limit)  # the caller may have set only one of the two
    return _validate(both)


def check_fields(given: Mapping[str, Any], own: Collection[str], rules: Mapping[str, FieldRule], where: str) -> None:
    """Raise GatewayError for the first field that is neither in `own` nor accepted. `where`: path of the object."""
    for name, value in given.items():
        if (
            name not in own
            and value is not None
            and (name not in rules or next(find_rejected(rules, name, value), None))
        ):
            raise _unknown_field(name, value, rules, own, f"{where}.")


def _check_value(name: str, value: Any) -> bool:
    return value is None or (name in ACCEPTED and next(find_rejected(ACCEPTED, name, value), None) is None)


def _check_stops(name: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_request(f"`{name}` must be a text or a list of texts", param=name)
    if len(stops) > MAX_STOPS or max(map(len, stops), default=0) > MAX_STOP:
        raise bad_request(f"`{name}` may have at most {MAX_STOPS} texts of at most {MAX_STOP} characters", param=name)
    return stops


def _validate(fields: Mapping[str, Any]) -> Sampling:
    try:
        return Sampling.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "sampling"
        raise bad_request(f"`{name}`: {first['msg']}", param=name) from None


def _unknown_field(
    name: str, value: Any, rules: Mapping[str, FieldRule], own: Collection[str], where: str = ""
) -> GatewayError:
    if name in rules:
        shown, advice = next(find_rejected(rules, name, value, where))
        shown = _shown(shown)
        return bad_request(f"this gateway cannot apply `{shown}`; {advice}", param=shown)
    shown, like = _shown(where + name), difflib.get_close_matches(name, [*own, *rules], 1)
    advice = f"did you mean `{like[0]}`?" if like else "leave it out"
    return bad_request(f"this gateway does not know the field `{shown}`; {advice}", param=shown)


def _shown(name: str) -> str:
    return re.sub(r"[^\w.\[\]-]", "?", name)[:96]
