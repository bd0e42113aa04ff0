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
from skyrl.train.generators.utils import concatenate_generator_outputs, prepare_generator_input
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import validate_generator_output

from rollyard.trainers.skyrl.generator import RollyardGenerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--rows", type=Path, help="JSON lines of values for the column `rollyard`")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--run")
    parser.add_argument("--phase", default="train")
    parser.add_argument("--step-wise", action="store_true")
    given = parser.parse_args()

    cfg = SkyRLTrainConfig()
    cfg.generator.n_samples_per_prompt = given.samples
    cfg.generator.step_wise_trajectories = cfg.generator.merge_stepwise_output = given.step_wise
    rows = given.rows.read_text().splitlines()
    prompts = [
        {
            "prompt": [{"role": "user", "content": "-"}],
            "env_class": None,
            "env_extras": {"rollyard": row},
            "uid": str(i),
        }
        for i, row in enumerate(rows)
    ]
    params = get_sampling_params_for_backend("vllm", cfg.generator.sampling_params)
    batch, uids = prepare_generator_input(prompts, given.samples, params, "rollyard", given.phase, 1)
    generator = RollyardGenerator("demo", run=given.run, step_wise=given.step_wise, kubeconfig=given.kubeconfig)
    output = asyncio.run(generator.generate(batch))
    validate_generator_output(len(batch["prompts"]), output, step_wise=given.step_wise)
    result = {**output, "trajectory_ids": [named.to_string() for named in output["trajectory_ids"]]}
    if given.phase == "eval":
        concatenate_generator_outputs([output], step_wise=given.step_wise)
    else:
        result |= _trained_on(cfg, output, uids)
    given.result.write_text(json.dumps(result))


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
