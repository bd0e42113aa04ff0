"""Rollouts for TRL's `GRPOTrainer`: a `rollout_func`, and a reward function to use with it.

TRL takes one token sequence for each sample. A rollout may have several (its segments). Then TRL gets the segment with
the greatest number of sampled tokens. The metric `rollout/left_out_tokens` is the number of sampled tokens that TRL
does not get, as a mean over the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from rollyard.client import Client
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import AgentSpec, Budgets, RolloutRequest, Sampling
from rollyard.kinds.task import Task
from rollyard.trainers.trl.task_prompts import task_of
from rollyard.trajectory import Trajectory, most_sampled, sampled_tokens

RolloutFunc = Callable[[list[Any], Any], dict[str, list[Any]]]


class ServedVersion(Protocol):
    """Source of the weights version for which rollouts wait."""

    @property
    def version(self) -> str | None: ...


@dataclass(frozen=True)
class Sample:
    """One sample of TRL. `env_mask` is 1 for sampled tokens and 0 for others; `logprobs` is 0 for the others."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    env_mask: list[int]


def rollout_func(
    client: Client,
    pool: str,
    *,
    weights: ServedVersion | None = None,
    sampling: Sampling | None = None,
    agent: AgentSpec | None = None,
    budgets: Budgets | None = None,
    task: Callable[[Any], Task] = task_of,
    namespace: str | None = None,
) -> RolloutFunc:
    """Make the `rollout_func` of a `GRPOTrainer`. It runs the trainer's prompts as rollouts of the RolloutPool `pool`.

    `weights`: the trainer's `PushWeights`; rollouts wait for the version that was pushed last. `sampling`: by default
    the values of the trainer's arguments, with `max_completion_length` as the limit of one turn. `task`: function that
    makes a task from a prompt.
    """

    def run(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        same_for_all = RolloutRequest(
            pool=pool,
            task=Task(kind="unset"),
            agent=agent or AgentSpec(),
            sampling=sampling or trainer_sampling(trainer.args),
            budgets=budgets or Budgets(),
            mode="train" if trainer.model.training else "eval",
            min_weights_version=weights.version if weights is not None else None,
        )
        requests = group_requests(prompts, task, same_for_all)
        trajectories = client.wait_many(client.submit(requests, namespace), namespace)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        return columns(trajectories, tokenizer.eos_token_id)

    return run


def group_requests(
    prompts: Sequence[Any], task: Callable[[Any], Task], same_for_all: RolloutRequest
) -> list[RolloutRequest]:
    """Make one request for each run of equal prompts. Its `n` is the length of the run.

    TRL passes each prompt `num_generations` times in a row. A training process may get fewer copies of a prompt.
    """
    counts = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
    return [evolve(same_for_all, task=task(prompt), n=count) for prompt, count in counts]


def rollout_reward(prompts: Sequence[Any], **fields: Any) -> list[float | None]:
    """Return the rewards of the rollouts. This is the reward function for a `GRPOTrainer` with our `rollout_func`.

    The reward is None for a rollout that ended Failed, InfraFailed or Cancelled. TRL leaves such a rollout out of the
    mean of its group.
    """
    rewards: list[float | None] = fields["rollout_reward"]
    if log_metric := fields.get("log_metric"):
        log_metric("rollout/without_reward", sum(reward is None for reward in rewards) / len(rewards))
        log_metric("rollout/turns", sum(fields["rollout_turns"]) / len(rewards))
        log_metric("rollout/left_out_tokens", sum(fields["rollout_left_out_tokens"]) / len(rewards))
    return rewards


def columns(trajectories: Sequence[Trajectory], eos_id: int) -> dict[str, list[Any]]:
    """Return the columns that a `rollout_func` must return. TRL passes the columns `rollout_*` to all reward functions."""
    samples = [sample_of(trajectory, eos_id) for trajectory in trajectories]
    left_out = [sampled_tokens(t.segments) - sum(s.env_mask) for t, s in zip(trajectories, samples, strict=True)]
    return {
        "prompt_ids": [sample.prompt_ids for sample in samples],
        "completion_ids": [sample.completion_ids for sample in samples],
        "logprobs": [sample.logprobs for sample in samples],
        "env_mask": [sample.env_mask for sample in samples],
        "rollout_id": [trajectory.id for trajectory in trajectories],
        "rollout_status": [str(trajectory.status) for trajectory in trajectories],
        "rollout_reward": [trajectory.reward for trajectory in trajectories],
        "rollout_turn_rewards": [[turn.reward for turn in trajectory.turns] for trajectory in trajectories],
        "rollout_metrics": [trajectory.metrics for trajectory in trajectories],
        "rollout_turns": [len(trajectory.turns) for trajectory in trajectories],
        "rollout_left_out_tokens": left_out,
    }


def sample_of(trajectory: Trajectory, eos_id: int) -> Sample:
    """Return the segment with the greatest number of sampled tokens, as a sample.

    For a rollout without a reward, or without a sampled token, return a prompt of one token and a completion of one
    token that is not trained on. An empty completion would end the training with an error, because TRL reads the last
    token of each completion.
    """
    best = most_sampled(trajectory.segments)
    if trajectory.reward is None or best is None:
        return Sample([eos_id], [eos_id], [0.0], [0])
    segment = trajectory.segments[best]
    n = segment.prompt_length
    return Sample(
        segment.token_ids[:n],
        segment.token_ids[n:],
        [0.0 if logprob is None else logprob for logprob in segment.logprobs[n:]],
        segment.loss_mask[n:],
    )


def trainer_sampling(args: Any) -> Sampling:
    """Return the sampling parameters of a `GRPOConfig`."""
    return Sampling(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or None,
        min_p=args.min_p,
        repetition_penalty=None if args.repetition_penalty == 1.0 else args.repetition_penalty,
        max_tokens=args.max_completion_length or Sampling().max_tokens,
    )
