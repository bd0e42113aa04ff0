"""Dialect of SGLang's `/generate`. Answers are converted to the form of `/v1/completions`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rollyard.core.errors import EndpointRefused
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.constraint import STRUCTURED
from rollyard.tokens.sampled_tokens import top_logprobs

PATH = "/generate"
RENAMED = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
)
UNKNOWN = ("allowed_token_ids", "bad_words")


def body(
    model: str, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """Return the body of a request. `model` is not used, because an SGLang server has only one model.

    Raises EndpointRefused for parameters that SGLang does not have.
    """
    for name in UNKNOWN:
        if getattr(sampling, name) is not None:
            raise EndpointRefused(f"SGLang has no `{name}`; leave it out of `sampling`, or use a pool of vLLM")
    given = {name: value for name in (*SAME_NAMES, *RENAMED) if (value := getattr(sampling, name)) not in (None, [])}
    params: dict[str, Any] = {RENAMED.get(name, name): value for name, value in given.items()}
    if sampling.logit_bias:
        params["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias.items()}
    stops = list(dict.fromkeys([*stop_ids, *sampling.stop_token_ids]))
    extra = {name: value for name, value in sampling.extra.items() if name != STRUCTURED}
    params |= {"max_new_tokens": max_tokens, "stop_token_ids": stops, **extra, **_grammar(sampling)}
    wanted = {"input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True, "stream": True}
    if top := top_logprobs(sampling):
        wanted["top_logprobs_num"] = top
    return wanted


def _grammar(sampling: Sampling) -> dict[str, Any]:
    match sampling.extra.get(STRUCTURED):
        case None:
            return {}
        case {"json": schema}:
            return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
        case {"json_object": True}:
            return {"json_schema": '{"type": "object"}'}
        case {"regex": pattern}:
            return {"regex": pattern}
        case {"choice": [*choices]}:
            return {"regex": "|".join(re.escape(str(one)) for one in choices)}
        case {"grammar": grammar}:
            return {"ebnf": grammar}
        case {"structural_tag": tag}:
            return {"structural_tag": tag}
    raise EndpointRefused(f"SGLang cannot apply this `{STRUCTURED}`; use json, regex, choice or grammar")


class SglangChunks:
    """Converts SGLang's events to chunks that have only new tokens.

    Each event has either all tokens so far or only the new ones, depending on an option of the server.
    """

    def __init__(self) -> None:
        self._seen = 0

    def read(self, event: Any) -> Any:
        """Convert an event to a chunk of `/v1/completions`. Raises ValueError if the tokens do not add up to the number
        that the event reports."""
        if not isinstance(event, dict) or "meta_info" not in event:
            return event  # an error has the same form in both APIs
        meta = event["meta_info"]
        tokens, total = meta.get("output_token_logprobs"), meta.get("completion_tokens")
        reason = meta.get("finish_reason")
        choice = {
            "finish_reason": reason,
            "stop_reason": reason.get("matched") if isinstance(reason, dict) else None,
            "prompt_tokens": meta.get("prompt_tokens"),
        }
        if tokens is None:
            return {"choices": [choice]}
        new = tokens[self._seen :] if len(tokens) == total else tokens
        tops = meta.get("output_top_logprobs")
        if self._seen + len(new) != total:
            raise ValueError(f"{self._seen} tokens and {len(new)} more are not the {total} that it counts")
        self._seen += len(new)
        ids, logprobs = [token[1] for token in new], {"token_logprobs": [token[0] for token in new]}
        if tops:
            named = ({f"token_id:{id}": logprob for logprob, id, *_ in top} for top in tops[len(tops) - len(new) :])
            logprobs["top_logprobs"] = list(named)
        return {"choices": [{**choice, "token_ids": ids, "logprobs": logprobs}]}
