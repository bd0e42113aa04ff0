"""Verifies that an engine has the right weights: compares its answer to a fixed prompt with the weights' files.

The prompt is sent twice. The answers must agree with each other, with the answer of an engine that was started on the
same weights, and with the logprobs that the embedded engine's forward pass computes from the files.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from rollyard.core.errors import Invalid
from rollyard.engine.weights.engine_control import ControlFailed, EngineControl, command
from rollyard.engine.weights.source import WeightsSource

if TYPE_CHECKING:
    from rollyard.engine.embedded.safetensors_files import Array

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
MIN_DIFFERENCE = 1e-3
"""Least difference of computed logprobs at which two weights must give different answers."""
MAX_BYTES = 256 << 20
"""Largest weights of which logprobs are computed: more would take memory and time from the engine on the same node."""


class WrongWeights(Exception):
    """The engine has other weights than the expected ones."""


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

    answer: ProbeAnswer
    error: float | None
    """None when nothing can be computed for such a model."""


class WeightsVerifier:
    """Verifies the weights of one engine, and keeps its answers."""

    def __init__(self, http: aiohttp.ClientSession, served_name: str, control: EngineControl) -> None:
        self._http = http
        self._served_name = served_name
        self._control = control
        self._latest: tuple[WeightsSource, WeightsProof, bool] | None = None
        """The latest proof, and whether the process was started on these weights."""
        self._answer: ProbeAnswer | None = None
        """Answer of the accepted weights."""
        self._proofs: dict[str, WeightsProof] = {}
        """Checksum -> the answer of a process that was started on these weights."""
        self._noise: float | None = None
        """Distance from the files of the last answer of an engine that had just been started."""

    async def prove(self, source: WeightsSource, now: WeightsSource | None) -> bool:
        """Prove the weights. `now`: those before; None for a process that was started on `source`.

        Return whether the answer equals that of `now` to the last digit although nothing explains that. Raises
        ControlFailed, WrongWeights.
        """
        answer, started = await self._ask(source), now is None
        again = await self._ask(source)
        computed = await _computed(source, answer.ids)
        proof = WeightsProof(answer, None if computed is None else _distance(answer.logprobs, computed))
        if why := why_not_proven(proof, again, self._proofs.get(source.checksum), None if started else self._noise):
            raise WrongWeights(f"ProbeFailed: {why}")
        self._latest = source, proof, started
        if now is None or answer != self._answer:
            return False
        was = await _computed(now, answer.ids)
        return was is None or computed is None or _distance(was, computed) > MIN_DIFFERENCE

    def accept(self) -> None:
        """Compare later answers with the latest proof."""
        assert self._latest is not None
        source, proof, started = self._latest
        self._answer = proof.answer
        if started:
            self._proofs[source.checksum], self._noise = proof, proof.error

    async def _ask(self, source: WeightsSource) -> ProbeAnswer:
        """Send the probe prompt. Raises ControlFailed when there is no valid answer."""
        body = {"model": self._served_name, "prompt": list(PROMPT), "max_tokens": TOKENS, "temperature": 0.0}
        body |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True, **self._control.request_fields(source)}
        said = await command(self._http, "/v1/completions", body, seconds=PROBE_SECONDS)
        try:
            choice = json.loads(said)["choices"][0]
            answer = ProbeAnswer(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))
        except (ValueError, KeyError, IndexError, TypeError):
            raise ControlFailed("the probe's answer has no token ids with logprobs") from None
        if not answer.ids or not all(isinstance(p, float | int) and math.isfinite(p) for p in answer.logprobs):
            raise ControlFailed(f"the probe's logprobs are not all numbers: {answer.logprobs}")
        return answer


def why_not_proven(proof: WeightsProof, again: ProbeAnswer, known: WeightsProof | None, noise: float | None) -> str:
    """Return the objection to an answer; empty without one.

    `again`: the next answer. `known`: the answer of an engine that was started on the same weights. `noise`: this
    engine's distance from the files with the weights on which it was started; None for an engine that was just started.
    """
    if (off := proof.answer.distance(again)) > MAX_ANSWER_DIFFERENCE:
        return f"it answers the same prompt differently the second time: logprobs differ by {off:.3g}"
    if known is not None and (off := proof.answer.distance(known.answer)) > MAX_ANSWER_DIFFERENCE:
        return f"its logprobs differ by {off:.3g} from those of an engine that was started on these weights"
    limit = STARTED_TOLERANCE if noise is None else max(TOLERANCE, NOISE * noise)
    if proof.error is not None and proof.error > limit:
        return f"its logprobs differ by up to {proof.error:.3g} from those computed from the files ({limit:.3g} is allowed)"
    return ""


def _distance(some: Sequence[float], others: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(some, others, strict=True)), default=math.inf)


async def _computed(source: WeightsSource, ids: Sequence[int]) -> list[float] | None:
    return await asyncio.to_thread(reference_logprobs, source, PROMPT, ids)


def reference_logprobs(source: WeightsSource, prompt: Sequence[int], sampled: Sequence[int]) -> list[float] | None:
    """Return one logprob for each sampled id, or None for a model that is too large or of an unknown architecture.

    It computes, so it blocks: call it in a thread.
    """
    if sum(file.stat().st_size for file in source.folder.glob("*.safetensors")) > MAX_BYTES:
        return None
    from rollyard.engine.embedded.kv_cache import KVCache
    from rollyard.engine.embedded.model import Model, Span
    from rollyard.engine.embedded.model_config import read_config
    from rollyard.engine.embedded.model_weights import load_weights

    try:
        config = read_config(source.folder)
        model = Model(config, load_weights(source.folder, config, source.adapter), len(prompt) + len(sampled))
    except (Invalid, OSError):
        return None
    cache = KVCache(config, 1, len(prompt) + len(sampled))
    slot, _ = cache.acquire(list(prompt))
    span, logprobs = Span(slot, 0, prompt), []
    for token in sampled:
        logprobs.append(_logprob(model.forward([span], cache)[0], token))
        span = Span(slot, span.end, [token])
    return logprobs


def _logprob(logits: Array, token: int) -> float:
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
