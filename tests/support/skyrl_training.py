"""SkyRL's two training loops, in a process of its own with SkyRL on its path. Only what needs a GPU is replaced: the
passes of the model. A "checkpoint" is a copy of the model."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.skyrl_runs import dataset_of  # first: it prepares `typing` for SkyRL

from skyrl.train.config import SkyRLTrainConfig  # isort: skip
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from transformers import AutoTokenizer

from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.skyrl.generator import RollyardGenerator


class NoModel:
    """SkyRL's `dispatch` without a model."""

    def __init__(self, model: Path) -> None:
        self._model = model

    def get_lcm_dp_size(self) -> int:
        return 1

    async def save_weights_for_sampler(self) -> None:
        pass

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def finalize_pending_saves(self, name: str) -> None:
        pass

    def save_hf_model(self, name: str, folder: str, tokenizer: Any) -> None:
        shutil.copytree(self._model, folder)


def trainer_of(base: Any, model: Path, steps: list[dict[str, Any]]) -> Any:
    """Make a subclass that adds each step's advantages and metrics to `steps`."""

    class Trainer(base):  # type: ignore[misc]
        def init_weight_sync_state(self) -> None:
            self.dispatch = NoModel(model)

        def fwd_logprobs_values_reward(self, data: Any) -> Any:
            data["values"] = None
            return data

        def train_critic_and_policy(self, data: Any) -> dict[str, float]:
            rows = zip(data["advantages"], data["response_mask"], strict=True)
            gains = [float(row[mask.bool()][0]) for row, mask in rows]
            tokens = int(data["loss_mask"].sum())
            steps.append({"step": self.global_step, "advantages": gains, "trained_tokens": tokens})
            return {}

        async def _run_training(self, training_input: Any) -> dict[str, float]:
            data = self.compute_advantages_and_returns(self.fwd_logprobs_values_reward(training_input))
            return dict(self.train_critic_and_policy(data))

    return Trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--kubeconfig", "--model", "--rows", "--result", "--export"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--run")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--asynchronous", action="store_true")
    given = parser.parse_args()

    cfg = SkyRLTrainConfig()
    cfg.generator.n_samples_per_prompt, cfg.generator.eval_n_samples_per_prompt = given.samples, 1
    cfg.data.dataloader.num_workers, cfg.data.dataloader.persistent_workers = 0, False
    t = cfg.trainer
    t.train_batch_size = t.policy_mini_batch_size = t.eval_batch_size = 2
    t.epochs, t.ckpt_interval, t.hf_save_interval, t.eval_interval = 1, -1, 1, 1
    t.print_example_interval, t.resume_mode, t.eval_before_train = 0, None, True
    t.enable_ray_gpu_monitor = cfg.generator.inference_engine.enable_ray_prometheus_stats = False
    t.export_path, t.placement.colocate_all, t.critic.model.path = str(given.export), False, None
    t.algorithm.use_kl_in_reward, t.algorithm.use_kl_loss = False, False
    if given.asynchronous:
        t.algorithm.policy_loss_type = "rollout_is"
        t.fully_async.enabled = True
        t.fully_async.num_parallel_generation_workers, t.fully_async.max_staleness_steps = 2, 1
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    dataset = dataset_of(given.rows, tokenizer)
    logged: list[dict[str, Any]] = []
    tracker = SimpleNamespace(log=lambda metrics, **_: logged.append(dict(metrics)), finish=lambda: None)
    generator = RollyardGenerator(
        "demo",
        run=given.run,
        versions=CheckpointVersions(f"{given.run}-", lag=int(given.asynchronous)),
        kubeconfig=given.kubeconfig,
    )
    steps: list[dict[str, Any]] = []
    base = FullyAsyncRayPPOTrainer if given.asynchronous else RayPPOTrainer
    trainer = trainer_of(base, given.model, steps)(
        cfg=cfg, tracker=tracker, tokenizer=tokenizer, train_dataset=dataset, eval_dataset=dataset,
        inference_engine_client=None, generator=generator,
    )  # fmt: skip
    asyncio.run(trainer.train())
    given.result.write_text(json.dumps({"steps": steps, "logged": logged}, default=str))


if __name__ == "__main__":
    main()
