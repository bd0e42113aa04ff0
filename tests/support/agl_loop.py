"""The training loop of Agent Lightning without its GPU workers: `python agl_loop.py FOLDER URL KEY MODEL`.

It runs in an environment with Agent Lightning and verl. Agent Lightning's task runner makes the trainer and starts the
loop. Replaced are the passes of the model, the model servers, and the actor's part of a checkpoint: a copy of the model.
What the optimizer would get is printed as JSON. The trainer loads its hooks from this file too.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentlightning.hooks import RolloutHooks

STEPS, TASKS, SAMPLES = 3, 2, 2
PREFIX = "agl-step"
RESPONSE = ["responses", "response_mask", "rollout_log_probs", "token_level_scores", "advantages"]


def write(**facts: Any) -> None:
    print("AGL", json.dumps(facts), flush=True)


class Hooks(RolloutHooks):  # type: ignore[misc]
    def on_enqueue(self, request: Any) -> Any:
        """Let only the weights of the newest checkpoint, or newer ones, sample a rollout."""
        saved = Path("latest_checkpointed_iteration.txt")  # verl writes it after each checkpoint
        row = json.loads(request.input["rollyard"])
        row["min_weights_version"] = f"{PREFIX}{saved.read_text() if saved.exists() else 0}"
        return request.model_copy(update={"input": {**request.input, "rollyard": json.dumps(row)}})

    def on_succeeded(self, rollout: Any, events: dict[str, list[Any]], store: Any) -> None:
        (named,) = [e.data for attempt in events.values() for e in attempt if e.event_type == "rollyard"]
        write(what="succeeded", agl=rollout.rollout_id, rollyard=named["rollout_id"])

    def on_failed(self, rollout: Any, store: Any) -> None:
        write(what="failed", agl=rollout.rollout_id, message=rollout.status.error_message)


def trainer_of(base: Any, model: str) -> Any:
    """Make a subclass without workers."""

    class Trainer(base):  # type: ignore[misc]
        def init_workers(self) -> None:
            def save(folder: str, *_: Any, **more: Any) -> None:
                shutil.copytree(model, Path(folder) / "huggingface")  # verl's FSDP actor writes it there

            self.actor_rollout_wg = SimpleNamespace(save_checkpoint=save)
            self.llm_server_manager = SimpleNamespace(get_addresses=lambda: ["127.0.0.1:1"], get_replicas=lambda: [])
            self.checkpoint_manager = SimpleNamespace(update_weights=lambda _: None, sleep_replicas=lambda: None)

        def _compute_old_log_prob(self, batch: Any) -> Any:
            from verl import DataProto

            return DataProto.from_single_dict({"old_log_probs": batch.batch["rollout_log_probs"]}), 0.0

        def _update_actor(self, batch: Any) -> Any:
            """Write the batch without its padding."""
            end = batch.batch["prompts"].shape[1]
            for i, kept in enumerate(batch.batch["attention_mask"].bool()):
                agl, uid = (str(batch.non_tensor_batch[name][i]) for name in ("rollout_id_list", "uid"))
                row = {name: batch.batch[name][i][kept[end:]].tolist() for name in RESPONSE}
                row["prompts"] = batch.batch["prompts"][i][kept[:end]].tolist()
                write(what="row", step=self.global_steps, agl=agl, uid=uid, **row)
            return SimpleNamespace(meta_info={"metrics": {}})

    return Trainer


def main() -> None:
    import agentlightning.verl.trainer as agl
    from agentlightning.verl.dataset import LoadedDataset
    from agentlightning.verl.entrypoint import _AglTaskRunner
    from hydra import compose, initialize_config_module

    folder, (url, key, model) = Path(sys.argv[1]), sys.argv[2:]
    with initialize_config_module("agentlightning.verl", version_base=None):
        config = compose(
            "config",
            [
                f"agentlightning.agl_base_url={url}",
                f"agentlightning.agl_key={key}",
                f"agentlightning.hooks={__file__}",
                "agentlightning.trace_aggregator.trajectory_max_prompt_length=200",
                "agentlightning.trace_aggregator.trajectory_max_response_length=300",
                f"actor_rollout_ref.model.path={model}",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.actor.ppo_mini_batch_size=1",
                "actor_rollout_ref.actor.use_dynamic_bsz=true",
                "algorithm.adv_estimator=grpo",
                f"data.train_batch_size={TASKS}",
                "data.dataloader_num_workers=0",
                "data.shuffle=false",
                "trainer.balance_batch=false",  # it is made for the actor's workers
                f"trainer.default_local_dir={folder}",
                "trainer.logger=[file]",
                "trainer.n_gpus_per_node=1",
                "trainer.save_freq=1",
                "trainer.test_freq=-1",
                "trainer.total_epochs=1",
            ],
        )
    agl.AgentLightningRayPPOTrainer = trainer_of(agl.AgentLightningRayPPOTrainer, model)
    data = [LoadedDataset(json.loads((folder / f"{name}.json").read_text())) for name in ("train", "val")]
    _AglTaskRunner.__ray_metadata__.modified_class().run(config, *data)


if __name__ == "__main__":
    main()
