"""GRPO by TRL's `GRPOTrainer`: an under-trained tiny-policy learns to use its tools, on two CPU cores.

TRL_EXPERIMENTAL_SILENCE=1 python -m examples.trl.train
"""

import argparse
import random
import signal
import sys
from pathlib import Path

from rich.console import Console
from trl import GRPOConfig, GRPOTrainer

from examples.local_server import ROOT, served_pools
from examples.tiny_policy.families import sample_math
from rollyard.client import Client
from rollyard.kinds.rollout import AgentSpec
from rollyard.trainers.trl import PushWeights, rollout_func, rollout_reward, task_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--tasks", type=int, default=12, help="tasks of a step, with 8 rollouts each")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-output" / "trl", help="folder of the results")
    options, rng = parser.parse_args(), random.Random(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and its pools are ended on exit
    args = GRPOConfig(
        output_dir=str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=8 * options.tasks,
        num_generations=8,
        max_completion_length=120,  # of one turn
        learning_rate=1e-4,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    with (
        served_pools(Console(), ROOT / "examples" / "grpo" / "pools.yaml") as kubeconfig,
        Client(kubeconfig=kubeconfig) as client,
        client.weights("policy", folder=options.out / "weights") as weights,
    ):
        push = PushWeights(weights)
        GRPOTrainer(
            model=str(ROOT / "examples" / "tiny_policy" / "weak"),
            reward_funcs=rollout_reward,
            args=args,
            train_dataset=task_dataset(sample_math(rng, held_out=False) for _ in range(4000)),
            rollout_func=rollout_func(client, "train", weights=push, agent=AgentSpec(max_turns=4)),
            callbacks=[push],
        ).train()


if __name__ == "__main__":
    main()
