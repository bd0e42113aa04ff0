"""Sampling: makes tokens and their logprobs from logits.

The logprobs are the model's own, before temperature, truncation and masks, as vLLM reports them by default. The random number
of a request's i-th draw is a pure function of the request's seed and i. So neither the rest of the batch nor the timing
changes this number. A request that continues with a seed moved by SEED_STRIDE for each token sampled so far draws as if it
had never been interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollyard.engine.embedded.safetensors_files import Array
from rollyard.wire.endpoint import SEED_STRIDE

GREEDY_BELOW = 1e-5
"""Temperature below which the most likely token is taken, as in vLLM."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """The token is drawn from this many of the likeliest tokens; 0: from all."""
    seed: int = 0
    top_logprobs: int = 0
    """Number of the likeliest tokens to report beside the sampled token."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One sampled token."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token, logprob), most likely first."""


def sample(
    logits: Array,
    params: Sequence[SamplingParams],
    drawn: Sequence[int],
    allowed: Mapping[int, NDArray[np.bool_]] | None = None,
) -> list[Draw]:
    """Draw one token for each row of logits [n, vocab]. `drawn`: the number of earlier draws of each request.

    `allowed`: row -> the tokens [vocab] to draw from, if the row has a grammar. At least one token must be allowed.
    """
    peaks = logits.max(axis=1, keepdims=True)
    shifted = logits - peaks
    masses = np.exp(shifted)
    norms = np.log(masses.sum(axis=1, dtype=np.float64))
    greedy = np.array([p.temperature < GREEDY_BELOW for p in params])
    choices = shifted
    if allowed:
        choices = _masked(shifted, allowed)
        masses = np.exp(choices)
    tokens = np.where(greedy, choices.argmax(axis=1), _pick(_tempered(choices, masses, params), params, drawn))
    logprobs = shifted[np.arange(len(tokens)), tokens] - norms
    return [
        Draw(token, min(logprob, 0.0), _top(shifted[i], norms[i], params[i].top_logprobs))
        for i, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True))
    ]


def _masked(shifted: Array, allowed: Mapping[int, NDArray[np.bool_]]) -> Array:
    """Return the logits to draw from. The likeliest allowed token of each row gets 0, so that no row is all zeros as
    probabilities."""
    masked = shifted.copy()
    for row, mask in allowed.items():
        masked[row, ~mask] = -np.inf
        masked[row] -= masked[row].max()
    return masked


def _tempered(shifted: Array, masses: Array, params: Sequence[SamplingParams]) -> Array:
    """Return unnormalised probabilities to draw from. Temperature is applied first, then top-k, then top-p."""
    if any(p.temperature != 1.0 for p in params):
        temperatures = np.array([[max(p.temperature, GREEDY_BELOW)] for p in params], np.float32)
        masses = np.exp(shifted / temperatures)
    for i, p in enumerate(params):
        if p.top_k or p.top_p < 1.0:
            masses[i] = _truncated(masses[i], p.top_k, p.top_p)
    return masses


def _truncated(masses: Array, top_k: int, top_p: float) -> Array:
    order = np.argsort(-masses, kind="stable")
    if top_k:
        order = order[:top_k]
    cumulated = np.cumsum(masses[order], dtype=np.float64)
    # the token with which the sum reaches top_p is kept too
    keep = order[: int(np.searchsorted(cumulated, top_p * cumulated[-1])) + 1]
    kept = np.zeros_like(masses)
    kept[keep] = masses[keep]
    return kept


def _pick(masses: Array, params: Sequence[SamplingParams], drawn: Sequence[int]) -> NDArray[np.int64]:
    cumulated = np.cumsum(masses, axis=1, dtype=np.float64)
    seeds = np.array([(p.seed + (n + 1) * SEED_STRIDE) % 2**64 for p, n in zip(params, drawn, strict=True)], np.uint64)
    targets = _uniform(seeds) * cumulated[:, -1]
    tokens: NDArray[np.int64] = (cumulated <= targets[:, None]).sum(axis=1)
    return tokens


def _uniform(states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map states to numbers in [0, 1): apply the finaliser of splitmix64, and read the upper 52 bits as a fraction.

    The caller multiplies such a number by the sum of all masses. The product must be less than the sum. With 52 bits
    it is less even after rounding.
    """
    z = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _top(shifted: Array, norm: float, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    best = np.argpartition(-shifted, count)[:count]
    best = best[np.argsort(-shifted[best], kind="stable")]
    return tuple((int(i), float(shifted[i] - norm)) for i in best)
