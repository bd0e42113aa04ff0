"""Compares the logprobs that the reference model computes for a trajectory's tokens with those of the engine."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from rollyard.trajectory import Segment, Trajectory
from rollyard.trajectory.session import SessionTrajectory
from tests.support.reference_model import Cache, ReferenceModel, reference_model


def differences(
    trajectories: Iterable[Trajectory | SessionTrajectory],
    model: Path | Mapping[str, Path],
    kept: Container[str] = (),
) -> list[float]:
    """Return the differences of each sampled token's logprob, in float32. Fails when a segment's arrays do not match.

    `model`: for all tokens, or for those of each version. `kept`: versions that came in mode Pause; their tokens after
    tokens of other versions in the same turn were sampled over the keys and values of those. If such a call goes on at
    another endpoint later, that endpoint computes all keys and values with the newer version.
    """
    found = []
    for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
        for turn in _turns(segment):
            cache: Cache | None = None
            fed = 0
            for version, at in turn:
                loaded = reference_model(model if isinstance(model, Path) else model[version])
                if version not in kept:
                    cache, fed = None, 0
                over_kept, next_cache = _run(loaded, segment, at, cache, fed)
                if fed:
                    anew, cache_anew = _run(loaded, segment, at, None, 0)
                    errors = [max([*over_kept[:moved], *anew[moved:]]) for moved in range(len(at) + 1)]
                    moved = errors.index(min(errors))
                    over_kept = over_kept[:moved] + anew[moved:]
                    next_cache = next_cache if moved == len(at) else cache_anew
                found += over_kept
                cache, fed = next_cache, at[-1]
    return found


def _run(
    model: ReferenceModel, segment: Segment, at: list[int], cache: Cache | None, fed: int
) -> tuple[list[float], Cache]:
    """Return the differences of the tokens at these positions, and the cache after them. The first `fed` are in `cache`."""
    ids = segment.token_ids
    table, next_cache = model.logprobs(ids[fed : at[-1]], cache)
    sampled = [(i, logprob) for i in at if (logprob := segment.logprobs[i]) is not None]
    assert len(sampled) == len(at)
    return [abs(float(table[i - 1 - fed, ids[i]]) - logprob) for i, logprob in sampled], next_cache


def _turns(segment: Segment) -> Iterator[list[tuple[str, list[int]]]]:
    """Yield the positions of each turn's tokens, grouped by version; of all turns together if there is one version."""
    n = len(segment.token_ids)
    assert n == len(segment.loss_mask) == len(segment.logprobs) == len(segment.weights_version)
    for logprob, version, sampled in zip(segment.logprobs, segment.weights_version, segment.loss_mask, strict=True):
        assert (logprob is None) == (version is None) == (sampled == 0)
    places = [i for i in range(n) if segment.loss_mask[i]]
    if len({segment.weights_version[i] for i in places}) == 1:
        turns = [places]
    else:
        turns = [list(turn) for sampled, turn in groupby(range(n), key=segment.loss_mask.__getitem__) if sampled]
    for turn in turns:
        yield [(str(v), list(at)) for v, at in groupby(turn, key=segment.weights_version.__getitem__)]
