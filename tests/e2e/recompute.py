"""What transformers says of a trajectory's tokens, beside what the engine said when it sampled them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rollyard.kinds.rollout import Trajectory
from rollyard.kinds.session import SessionTrajectory


def differences(trajectories: Iterable[Trajectory | SessionTrajectory], model: Path) -> list[float]:
    """Of the logprob of each sampled token, in float32. Fails where a segment's arrays do not fit together."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for segment in (segment for trajectory in trajectories for segment in trajectory.segments):
        n = len(segment.token_ids)
        assert n == len(segment.loss_mask) == len(segment.logprobs) == len(segment.weights_version)
        with torch.no_grad():
            table = torch.log_softmax(policy(torch.tensor([segment.token_ids])).logits[0].float(), -1)
        for i, (mask, logprob) in enumerate(zip(segment.loss_mask, segment.logprobs, strict=True)):
            assert (logprob is None) == (segment.weights_version[i] is None) == (mask == 0)
            if logprob is not None:
                found.append(abs(table[i - 1, segment.token_ids[i]].item() - logprob))
    return found
