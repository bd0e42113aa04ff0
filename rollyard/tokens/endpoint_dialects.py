"""Dialects of model servers: how a request is written, and where a chunk of the answer has each value.

There are three:
- `/v1/completions`: for Rollyard's own engines, whose reverse proxy adds the weights version, and for servers to
  which neither of the next two applies.
- `/inference/v1/generate` (vLLM with --enable-scale-out): for other servers that have it and report the length of
  their context. The server does not decode the ids to text. It sends the token id of each logprob, and the weights
  version of each token.
- `/generate` (SGLang): for endpoints whose `dialect` is `sglang`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Sampling
from rollyard.tokens import sglang
from rollyard.tokens.sampled_tokens import top_logprobs

Body = dict[str, Any]
MAX_TOP_LOGPROBS = 20
"""Greatest number of likeliest tokens that vLLM sends by default (--max-logprobs)."""
ID_PREFIX = "token_id:"
"""Prefix of a token's name if a request has `return_tokens_as_token_ids`."""
NAMED = set(Sampling.model_fields) - {"logprobs", "extra", "stop_token_ids", "max_tokens"}
"""Fields of `Sampling` that vLLM has under the same names."""


@dataclass(frozen=True)
class StreamChunk:
    """Values of one event of an answer."""

    ids: list[int] | None
    logprobs: list[Any]
    named: list[int] | None
    """Id of the token to which each logprob belongs; None if the dialect does not send these ids."""
    prompt_ids: list[int] | None
    prompt_tokens: int | None
    """Number of prompt tokens, from servers that do not send the prompt's ids back."""
    finish_reason: Any
    stop_reason: int | str | None
    weight_versions: list[dict[str, Any]] | None
    likeliest: list[Any] | None
    """The likeliest tokens at each position, in a form that `Dialect.pairs` reads; None if the server sent none."""


def _unchanged(event: Any) -> Any:
    return event


def _pairs_by_name(likeliest: dict[str, float]) -> list[tuple[int, float]]:
    """Read names such as `token_id:42`. Raises ValueError for other names."""
    return [(int(name.removeprefix(ID_PREFIX)), logprob) for name, logprob in likeliest.items()]


def _pairs(likeliest: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(top["token_id"], top["logprob"]) for top in likeliest]


@dataclass(frozen=True)
class Dialect:
    path: str
    body: Callable[[str, Sequence[int], Sampling, int, Sequence[int]], Body]
    chunk: Callable[[dict[str, Any]], StreamChunk]
    reader: Callable[[], Callable[[Any], Any]] = lambda: _unchanged
    """Function that is called once for each answer. It returns a function that converts an event to the form for
    `chunk`."""
    pairs: Callable[[Any], list[tuple[int, float]]] = _pairs_by_name
    """Function that reads (id, logprob) from one item of `StreamChunk.likeliest`."""
    echoes: bool = True
    """True: the server sends the prompt's ids back. False: it sends only their number."""


def _parameters(sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]) -> Body:
    """Return the sampling parameters under vLLM's names. If a parameter is left out, the engine's default applies.

    `min_tokens` is limited to `max_tokens`, because engines refuse a minimum above the maximum.
    """
    if sampling.min_tokens is not None:
        sampling = evolve(sampling, min_tokens=min(sampling.min_tokens, max_tokens))
    stops = list(dict.fromkeys([*stop_ids, *sampling.stop_token_ids]))
    body = sampling.model_dump(include=NAMED, exclude_none=True)
    named = {key: value for key, value in body.items() if value not in ([], {})}
    counted = {"max_tokens": max_tokens, "stop_token_ids": stops, "logprobs": top_logprobs(sampling)}
    return {**named, **counted, **sampling.extra}


def _completion(
    model: str, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]
) -> Body:
    wanted = {"model": model, "prompt": list(prompt_ids), "stream": True, "return_token_ids": True}
    if top_logprobs(sampling):  # as texts two tokens may have the same name
        wanted["return_tokens_as_token_ids"] = True
    return {**_parameters(sampling, max_tokens, stop_ids), **wanted}


def _generate(
    model: str, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int, stop_ids: Sequence[int]
) -> Body:
    parameters = _parameters(sampling, max_tokens, stop_ids)
    if top := top_logprobs(sampling):  # the server counts the sampled token as one of them
        parameters["logprobs"] = min(top + 1, MAX_TOP_LOGPROBS)
    wanted = {"model": model, "token_ids": list(prompt_ids), "stream": True, "return_token_ids": True}
    return {**wanted, "sampling_params": parameters}


def _completion_chunk(event: dict[str, Any]) -> StreamChunk:
    choice = event["choices"][0]
    found = choice.get("logprobs") or {}
    logprobs = found.get("token_logprobs") or []
    return _chunk(choice, logprobs, None, choice.get("prompt_token_ids"), found.get("top_logprobs"))


def _generate_chunk(event: dict[str, Any]) -> StreamChunk:
    choice = event["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or []
    named = [entry["token_id"] for entry in content]
    logprobs, likeliest = (
        [entry["logprob"] for entry in content],
        [entry.get("top_logprobs") or [] for entry in content],
    )
    return _chunk(choice, logprobs, named, event.get("prompt_token_ids"), likeliest)


def _chunk(
    choice: dict[str, Any],
    logprobs: list[Any],
    named: list[int] | None,
    prompt_ids: list[int] | None,
    likeliest: list[Any] | None,
) -> StreamChunk:
    return StreamChunk(
        ids=choice.get("token_ids"),
        logprobs=logprobs,
        named=named,
        prompt_ids=prompt_ids,
        prompt_tokens=choice.get("prompt_tokens"),
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        weight_versions=choice.get("weight_versions"),
        likeliest=likeliest,
    )


COMPLETIONS = Dialect("/v1/completions", _completion, _completion_chunk)
GENERATE = Dialect("/inference/v1/generate", _generate, _generate_chunk, pairs=_pairs)
SGLANG = Dialect(sglang.PATH, sglang.body, _completion_chunk, lambda: sglang.SglangChunks().read, echoes=False)
