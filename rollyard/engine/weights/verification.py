"""Verifies that an engine has the right weights, by its answers to a fixed prompt.

The prompt is sent twice. The two answers must agree. The first answer must also agree with logprobs that the embedded
engine's forward pass computes from the files. This computation is left out for models that are too large or that the
embedded engine cannot read. If an earlier process of this engine was started on the same weights, the first answer must
agree with that process's answer too.
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
"""Prompt of low ids, which are plain bytes in the vocabularies of supported models."""
TOKENS = 16
PROBE_SECONDS = 120.0
MAX_ANSWER_DIFFERENCE = 0.25
"""Greatest allowed difference of logprobs between two answers to the prompt. Half precision and the other requests in
the batch make answers differ."""
TOLERANCE = 0.02
"""After a change of weights, the engine's logprobs may differ by this much from those computed from the files."""
NOISE = 3.0
"""Just after its start, the engine's logprobs differ a little from those computed from the files, because the engine
computes inexactly. After a change of weights, `NOISE` times this difference is allowed, but never less than
`TOLERANCE`."""
STARTED_TOLERANCE = 0.5
"""Greatest allowed difference from the files for an engine that has just been started, in any precision."""
MIN_DIFFERENCE = 1e-3
"""If the logprobs computed for the old and the new weights differ by more than this, the engine's answers must differ
too."""
MAX_BYTES = 256 << 20
"""Greatest size of weights for which logprobs are computed. The computation of larger weights would take memory and
time from the engine on the same node."""


class WrongWeights(Exception):
    """The engine has other weights than expected."""


@dataclass(frozen=True)
class ProbeAnswer:
    """An answer to the probe prompt."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def distance(self, other: ProbeAnswer) -> float:
        """Return the greatest difference of the logprobs over the tokens before the first difference of the ids; inf if
        the first ids differ."""
        same = 0
        while same < min(len(self.ids), len(other.ids)) and self.ids[same] == other.ids[same]:
            same += 1
        return _distance(self.logprobs[:same], other.logprobs[:same])


@dataclass(frozen=True)
class WeightsProof:
    """An answer, and its distance from the logprobs computed from the files of the weights."""

    answer: ProbeAnswer
    error: float | None
    """Distance from the computed logprobs; None if they could not be computed."""


class WeightsVerifier:
    """Verifies the weights of one engine, and keeps its answers."""

    def __init__(self, http: aiohttp.ClientSession, served_name: str, control: EngineControl) -> None:
        self._http = http
        self._served_name = served_name
        self._control = control
        self._latest: tuple[WeightsSource, WeightsProof, bool] | None = None
        """The latest weights and proof, and whether the process was started on these weights."""
        self._answer: ProbeAnswer | None = None
        """Answer that the engine gave with the accepted weights."""
        self._proofs: dict[str, WeightsProof] = {}
        """Checksum of weights -> proof by a process that was started on these weights."""
        self._noise: float | None = None
        """Difference between the engine's answer just after its last start and the logprobs computed from the files."""

    async def prove(self, source: WeightsSource, now: WeightsSource | None) -> bool:
        """Verify the weights. `now`: the weights before the change; None for a process that was started on `source`.

        Return True if the answer is exactly the same as with `now`, although it should differ. The answer need not
        differ if the logprobs computed for both weights differ by at most `MIN_DIFFERENCE`.

        Raises ControlFailed, WrongWeights.
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
        """Accept the latest proof; later answers are compared with it."""
        assert self._latest is not None
        source, proof, started = self._latest
        self._answer = proof.answer
        if started:
            self._proofs[source.checksum], self._noise = proof, proof.error

    async def _ask(self, source: WeightsSource) -> ProbeAnswer:
        """Send the probe prompt. Raises ControlFailed if there is no valid answer."""
        body = {"model": self._served_name, "prompt": list(PROMPT), "max_tokens": TOKENS, "temperature": 0.0}
        body |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True, **self._control.request_fields(source)}
        raw = await command(self._http, "/v1/completions", body, seconds=PROBE_SECONDS)
        try:
            choice = json.loads(raw)["choices"][0]
            answer = ProbeAnswer(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))
        except (ValueError, KeyError, IndexError, TypeError):
            raise ControlFailed("the probe's answer has no token ids with logprobs") from None
        if not answer.ids or not all(isinstance(p, float | int) and math.isfinite(p) for p in answer.logprobs):
            raise ControlFailed(f"the probe's logprobs are not all numbers: {answer.logprobs}")
        return answer


def why_not_proven(proof: WeightsProof, again: ProbeAnswer, known: WeightsProof | None, noise: float | None) -> str:
    """Return why an answer does not prove the weights; empty if it proves them.

    `again`: the second answer. `known`: the proof by an engine that was started on the same weights. `noise`: this
    engine's distance from the files just after its start; None if it has just been started, or if the distance is not
    known.
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
    """Compute the logprob of each sampled id; None for a model that is too large, or that the embedded engine
    cannot read.

    Call this in a thread, because the computation takes long.
    """
    try:
        if sum(file.stat().st_size for file in source.folder.glob("*.safetensors")) > MAX_BYTES:
            return None
    except OSError:
        return None
    from rollyard.engine.embedded.kv_cache import KVCache
    from rollyard.engine.embedded.model import Model, Span
    from rollyard.engine.embedded.model_weights import load_weights
    from rollyard.model_folder.model_config import read_config

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
