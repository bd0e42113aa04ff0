"""A fixed prompt by which an engine proves its weights: the same tokens, the same logprobs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollyard.engine.weights.engine_control import ControlFailed, command

PROMPT = tuple(range(20, 52))
"""Low ids, which are plain bytes in the vocabularies of supported models."""
TOKENS = 16
PROBE_SECONDS = 120.0
MAX_ANSWER_DIFFERENCE = 0.25
"""Largest difference of logprobs between two answers of one engine, in half precision and among other requests."""
TOLERANCE = 0.02
"""Largest difference from the logprobs computed from the files in single precision."""
NOISE = 3.0
"""Allowed factor on the engine's distance from the files, relative to the distance when it had just been started."""
STARTED_TOLERANCE = 0.5
"""Largest difference from the files for an engine that was just started, in any precision."""


@dataclass(frozen=True)
class ProbeAnswer:
    """An answer to the probe prompt."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def distance(self, other: ProbeAnswer) -> float:
        """Return the largest difference of logprobs over the common tokens; inf when even the first token differs."""
        same = 0
        while same < min(len(self.ids), len(other.ids)) and self.ids[same] == other.ids[same]:
            same += 1
        return _distance(self.logprobs[:same], other.logprobs[:same])


@dataclass(frozen=True)
class WeightsProof:
    """An answer of accepted weights, and its distance from the logprobs computed from their files."""

    reading: ProbeAnswer
    error: float | None
    """None when nothing can be computed for such a model."""


async def read_probe(http: aiohttp.ClientSession, model: str, fields: Mapping[str, Any]) -> ProbeAnswer:
    """Send the probe prompt. Raises ControlFailed when there is no valid answer."""
    body = {"model": model, "prompt": list(PROMPT), "max_tokens": TOKENS, "temperature": 0.0, "logprobs": 0}
    body |= {"return_token_ids": True, "ignore_eos": True, **fields}
    said = await command(http, "/v1/completions", body, seconds=PROBE_SECONDS)
    try:
        choice = json.loads(said)["choices"][0]
        reading = ProbeAnswer(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))
    except (ValueError, KeyError, IndexError, TypeError):
        raise ControlFailed("the probe's answer has no token ids with logprobs") from None
    if not reading.ids or not all(isinstance(p, float | int) and math.isfinite(p) for p in reading.logprobs):
        raise ControlFailed(f"the probe's logprobs are not all numbers: {reading.logprobs}")
    return reading


def reference_error(reading: ProbeAnswer, computed: Sequence[float] | None) -> float | None:
    return None if computed is None else _distance(reading.logprobs, computed)


def why_not_proven(proof: WeightsProof, again: ProbeAnswer, known: WeightsProof | None, noise: float | None) -> str:
    """Return the objection to an answer; empty without one.

    `again`: the next answer. `known`: the answer of an engine that was started on the same weights. `noise`: this
    engine's distance from the files with the weights on which it was started; None for an engine that was just started.
    """
    if (off := proof.reading.distance(again)) > MAX_ANSWER_DIFFERENCE:
        return f"it answers the same prompt differently the second time: logprobs differ by {off:.3g}"
    if known is not None and (off := proof.reading.distance(known.reading)) > MAX_ANSWER_DIFFERENCE:
        return f"its logprobs differ by {off:.3g} from those of an engine that was started on these weights"
    limit = STARTED_TOLERANCE if noise is None else max(TOLERANCE, NOISE * noise)
    if proof.error is not None and proof.error > limit:
        return f"its logprobs differ by up to {proof.error:.3g} from those computed from the files ({limit:.3g} is allowed)"
    return ""


def _distance(some: Sequence[float], others: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(some, others, strict=True)), default=math.inf)
