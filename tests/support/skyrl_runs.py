"""SkyRL's own code around `RollyardGenerator`, in a process of its own with SkyRL on its path.

Of its trainer run the parts before the loss: the batch, the checks of the output, the rewards, the advantages. They need
no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if sys.version_info < (3, 12):  # SkyRL asks for 3.12, because pydantic takes no `typing.TypedDict` in earlier ones
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]

from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.evaluate import evaluate
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import build_dataloader, validate_generator_output
from transformers import AutoTokenizer

from rollyard.trainers.skyrl.generator import RollyardGenerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=Path, help="a dataset of SkyRL")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--run")
    parser.add_argument("--phase", default="train")
    parser.add_argument("--step-wise", action="store_true")
    given = parser.parse_args()

    cfg = SkyRLTrainConfig()
    cfg.generator.n_samples_per_prompt = cfg.generator.eval_n_samples_per_prompt = given.samples
    cfg.generator.step_wise_trajectories = cfg.generator.merge_stepwise_output = given.step_wise
    cfg.trainer.print_example_interval = 0
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    dataset = dataset_of(given.rows, tokenizer)
    generator = RollyardGenerator("demo", run=given.run, step_wise=given.step_wise, kubeconfig=given.kubeconfig)
    if given.phase == "eval":
        cfg.trainer.eval_batch_size = len(dataset)
        loader = build_dataloader(cfg, dataset, is_train=False)
        found = asyncio.run(evaluate(loader, generator, cfg, global_step=1, tokenizer=tokenizer))
        given.result.write_text(json.dumps(found))
        return
    prompts = dataset.collate_fn([dataset[i] for i in range(len(dataset))])
    params = get_sampling_params_for_backend("vllm", cfg.generator.sampling_params)
    batch, uids = prepare_generator_input(prompts, given.samples, params, "rollyard", "train", 1)
    output = asyncio.run(generator.generate(batch))
    validate_generator_output(len(batch["prompts"]), output, step_wise=given.step_wise)
    result = {**output, "trajectory_ids": [named.to_string() for named in output["trajectory_ids"]]}
    given.result.write_text(json.dumps(result | _trained_on(cfg, output, uids)))


def dataset_of(file: Path, tokenizer: Any) -> Any:
    return PromptDataset([str(file)], tokenizer, max_prompt_length=512, num_workers=1)


def _trained_on(cfg: Any, output: Any, uids: list[str]) -> dict[str, Any]:
    """Return what SkyRL's trainer makes of the output: the advantage of each row, and its metrics."""
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.cfg, trainer.all_metrics = cfg, {}
    trainer.tokenizer = SimpleNamespace(pad_token_id=0)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    cfg.trainer.train_batch_size = cfg.trainer.policy_mini_batch_size = len(set(uids))
    cfg.trainer.critic.model.path = None
    if output["is_last_step"] is not None:
        uids = [named.instance_id for named in output["trajectory_ids"]]
    output = {key: value for key, value in output.items() if key != "rollout_metrics"}
    output, uids = trainer.postprocess_generator_output(output, uids)
    data = trainer.convert_to_training_input(output, uids)
    data["values"] = None
    data = trainer.compute_advantages_and_returns(data)
    rows = zip(data["advantages"], data["response_mask"], strict=True)
    return {
        "advantages": [float(row[mask.bool()][0]) for row, mask in rows],
        "trained_tokens": int(data["loss_mask"].sum()),
        "metrics": trainer.all_metrics,
    }


if __name__ == "__main__":
    main()
