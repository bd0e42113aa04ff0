"""Compares the logprobs that transformers computes for a trajectory's tokens with those of the engine."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
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
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # two threads of a small model mostly wait for each other, on cores that other tests need
    loaded: dict[Path, Any] = {}
    found = []
    for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
        ids = segment.token_ids
        for turn in _turns(segment):
            cache, fed = None, 0
            for version, at in turn:
                folder = model if isinstance(model, Path) else model[version]
                if folder not in loaded:
                    loaded[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                if version not in kept:
                    cache, fed = None, 0
                with torch.no_grad():
                    out = loaded[folder](torch.tensor([ids[fed : at[-1]]]), past_key_values=cache, use_cache=True)
                table = torch.log_softmax(out.logits[0].float(), -1)
                for i in at:
                    logprob = segment.logprobs[i]
                    assert logprob is not None
                    found.append(abs(table[i - 1 - fed, ids[i]].item() - logprob))
                cache, fed = out.past_key_values, at[-1]
    return found


def _turns(segment: Segment) -> Iterator[list[tuple[str, list[int]]]]:
    """Yield the positions of each turn's tokens, grouped by version."""
    n = len(segment.token_ids)
    assert n == len(segment.loss_mask) == len(segment.logprobs) == len(segment.weights_version)
    for sampled, places in groupby(range(n), key=segment.loss_mask.__getitem__):
        turn = list(places)
        for i in turn:
            assert (segment.logprobs[i] is None) == (segment.weights_version[i] is None) == (sampled == 0)
        if sampled:
            yield [(str(v), list(at)) for v, at in groupby(turn, key=segment.weights_version.__getitem__)]
