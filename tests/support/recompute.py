"""Compares the logprobs that transformers computes for a trajectory's tokens with those of the engine."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from rollyard.kinds.rollout import Segment, Trajectory
from rollyard.kinds.session import SessionTrajectory


def differences(
    trajectories: Iterable[Trajectory | SessionTrajectory],
    model: Path | Mapping[str, Path],
    kept: Container[str] = (),
) -> list[float]:
    """Return the differences of each sampled token's logprob, in float32. Fails when a segment's arrays do not match.

    `model`: for all tokens, or for those of each version. `kept`: versions that came in mode Pause; their tokens after
    tokens of other versions in the same turn were sampled over the keys and values of those.
    """
    import torch

    torch.set_num_threads(1)  # two threads of a small model mostly wait for each other, on cores that other tests need
    found = []
    for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
        ids = segment.token_ids
        for turn in _turns(segment):
            cache, fed = None, 0
            for version, at in turn:
                folder = model if isinstance(model, Path) else model[version]
                if version not in kept:
                    cache, fed = None, 0
                with torch.no_grad():
                    out = _model(folder)(torch.tensor([ids[fed : at[-1]]]), past_key_values=cache, use_cache=True)
                table = torch.log_softmax(out.logits[0].float(), -1)
                for i in at:
                    logprob = segment.logprobs[i]
                    assert logprob is not None
                    found.append(abs(table[i - 1 - fed, ids[i]].item() - logprob))
                cache, fed = out.past_key_values, at[-1]
    return found


@lru_cache(maxsize=32)
def _model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


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
