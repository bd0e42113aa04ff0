"""Short runs of TRL's trainers on a served pool, each in processes of its own: `python -m tests.support.trl_runs`.

They write what the trainer got as JSON lines. TRL's asynchronous trainer has its attention as a CUDA kernel only; here
it gets the same function in torch.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from rollyard.client import Client
from rollyard.kinds.batch import BatchRequest, DatasetRef
from rollyard.kinds.rollout import Sampling
from rollyard.trainers.trl import (
    PushWeights,
    StreamWorker,
    WeightTransfer,
    rollout_func,
    rollout_reward,
    task_dataset,
)

STEPS, GROUP = 2, 4
SAMPLING = Sampling(temperature=1.0, max_tokens=100)
Record = Callable[..., None]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("trainer", choices=("grpo", "async"))
    for name in ("kubeconfig", "model", "folder", "tasks"):
        options.add_argument(f"--{name}", type=Path, required=True)
    given = options.parse_args()
    tasks = [json.loads(line) for line in given.tasks.read_text().splitlines()]
    with (given.folder / f"{given.trainer}-{os.environ.get('RANK', 0)}.jsonl").open("w") as file:

        def record(**facts: Any) -> None:
            file.write(json.dumps(facts) + "\n")

        with Client(kubeconfig=given.kubeconfig) as client:
            run = grpo if given.trainer == "grpo" else asynchronous
            run(client, given.folder, given.model, tasks, record)


def settings(folder: Path, groups: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trainer"),
        "max_steps": STEPS,
        "per_device_train_batch_size": groups * GROUP // int(os.environ.get("WORLD_SIZE", 1)),
        "num_generations": GROUP,
        "learning_rate": 1e-5,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def grpo(client: Client, folder: Path, model: Path, tasks: list[dict[str, Any]], record: Record) -> None:
    with client.weights("policy", folder=folder / "weights") as weights:
        push = PushWeights(weights)
        run = rollout_func(client, "demo", weights=push, sampling=SAMPLING)

        def recorded(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
            columns = run(prompts, trainer)
            record(step=trainer.state.global_step, version=push.version, prompts=prompts, **columns)
            return columns

        trainer = GRPOTrainer(
            model=str(model),
            reward_funcs=rollout_reward,
            args=GRPOConfig(**settings(folder, 2), shuffle_dataset=False),
            train_dataset=task_dataset(tasks),
            rollout_func=recorded,
            callbacks=[push],
        )
        trainer.train()
        record(log=trainer.state.log_history, version=push.version)


def asynchronous(client: Client, folder: Path, model: Path, tasks: list[dict[str, Any]], record: Record) -> None:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attention_of_segments)
    async_grpo_trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    client.put_dataset("sums", tasks)
    request = BatchRequest(
        pool="demo",
        n=GROUP,
        dataset=DatasetRef(name="sums"),
        step_groups=1,
        max_staleness=1,
        sampling=SAMPLING,
        pass_over=False,
    )
    with client.weights("policy", folder=folder / "weights") as weights:
        transfer = WeightTransfer(weights)
        worker = StreamWorker(client, request, transfer)
        put_group = worker.rollout_buffer.put_group

        def recorded(delivery: int, samples: list[Any]) -> None:
            for s in samples:
                facts = {"version": s.model_version, "advantage": s.advantage, "reward": s.metrics["reward"]}
                arrays = {"ids": s.input_ids, "mask": s.completion_mask, "logprobs": s.old_log_probs}
                facts |= {name: array.tolist() for name, array in arrays.items()}
                record(group=delivery, sampled=int(s.completion_mask.sum()), **facts)
            put_group(delivery, samples)

        worker.rollout_buffer.put_group = recorded  # type: ignore[method-assign]
        trainer = AsyncGRPOTrainer(
            model=str(model),
            args=AsyncGRPOConfig(**settings(folder, 1), token_budget=0),
            train_dataset=task_dataset(tasks),
            rollout_worker=worker,
            weight_transfer=transfer,
        )
        trainer.train()
        record(log=trainer.state.log_history, version=weights.version, taken=worker.rollout_buffer.taken)


def attention_of_segments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    *longest: int,
    softmax_scale: float,
    **rest: Any,
) -> torch.Tensor:
    """Causal attention of packed segments, [tokens, heads, width]; each segment's queries are its last keys."""
    parts = []
    for (a, b), (c, d) in zip(_spans(query_ends), _spans(key_ends), strict=True):
        q, k, v = query[a:b].transpose(0, 1), key[c:d].transpose(0, 1), value[c:d].transpose(0, 1)
        seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], attn_mask=seen, scale=softmax_scale, enable_gqa=True
            )[0].transpose(0, 1)
        )
    return torch.cat(parts)


def _spans(ends: torch.Tensor) -> list[tuple[int, int]]:
    return list(pairwise(ends.tolist()))


if __name__ == "__main__":
    main()
