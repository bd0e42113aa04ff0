"""Verifies that an engine has the right weights: compares its answer to the probe prompt with their files."""

from __future__ import annotations

import asyncio

import aiohttp

from rollyard.engine.weights import probe_prompt
from rollyard.engine.weights.engine_control import EngineControl
from rollyard.engine.weights.probe_prompt import ProbeAnswer, WeightsProof, reference_error, why_not_proven
from rollyard.engine.weights.reference_logprobs import reference_logprobs
from rollyard.engine.weights.source import WeightsSource

MIN_DIFFERENCE = 1e-3
"""Least difference of computed logprobs at which two weights must give different answers."""


class WrongWeights(Exception):
    """The engine has other weights than the expected ones."""


class WeightsVerifier:
    """Verifies the weights of one engine, and keeps its answers."""

    def __init__(self, http: aiohttp.ClientSession, served_name: str, control: EngineControl) -> None:
        self._http = http
        self._served_name = served_name
        self._control = control
        self._reading: ProbeAnswer | None = None
        """Answer of the weights now served."""
        self._proofs: dict[str, WeightsProof] = {}
        """Checksum -> the answer of a process that was started on these weights."""
        self._noise: float | None = None
        """Distance from the files of the last answer of an engine that had just been started."""

    async def prove(self, source: WeightsSource, *, started: bool) -> WeightsProof:
        """Prove the weights. `started`: the process was started on them. Raises ControlFailed, WrongWeights."""
        reading = await self._ask(source)
        again = await self._ask(source)
        proof = WeightsProof(reading, reference_error(reading, await _computed(source, reading.ids)))
        if why := why_not_proven(proof, again, self._proofs.get(source.checksum), None if started else self._noise):
            raise WrongWeights(f"ProbeFailed: {why}")
        return proof

    async def is_unchanged(self, source: WeightsSource, now: WeightsSource, proof: WeightsProof) -> bool:
        """Return whether the answer equals the previous one to the last digit although nothing explains that."""
        if proof.reading != self._reading:
            return False
        ids = proof.reading.ids
        was, computed = await _computed(now, ids), await _computed(source, ids)
        return (
            was is None
            or computed is None
            or max(abs(a - b) for a, b in zip(was, computed, strict=True)) > MIN_DIFFERENCE
        )

    def accept(self, source: WeightsSource, proof: WeightsProof, *, started: bool) -> None:
        """Record the answer with which later proofs are compared."""
        self._reading = proof.reading
        if started:
            self._proofs[source.checksum], self._noise = proof, proof.error

    async def _ask(self, source: WeightsSource) -> ProbeAnswer:
        return await probe_prompt.read_probe(self._http, self._served_name, self._control.request_fields(source))


async def _computed(source: WeightsSource, ids: tuple[int, ...]) -> list[float] | None:
    return await asyncio.to_thread(reference_logprobs, source, probe_prompt.PROMPT, ids)
