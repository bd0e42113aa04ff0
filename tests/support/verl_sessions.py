"""Steps of verl's v1 trainer without its GPU workers: `python verl_sessions.py MODE FOLDER KUBECONFIG MODEL [resume]`.

It runs in verl's environment. All classes are verl's own: trainer, dataset, agent loop workers, TransferQueue, replay
buffer and advantages. What the optimizer would get is printed as JSON. In the mode `colocate_async` the process stands
still after a checkpoint in the last step, until somebody kills it; with `resume` it goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEPS, GROUPS, SAMPLES = 2, 2, 2
PREFIX = "verl-step"
TENSORS = ["prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "advantages"]


def config_of(mode: str, folder: Path, kubeconfig: str, model: str) -> Any:
    from hydra import compose, initialize_config_module

    loops = "".join(
        f"- name: {name}\n  _target_: rollyard.trainers.verl.agent_loop.RollyardAgentLoop\n  pool: demo\n"
        f"  kubeconfig: {kubeconfig}\n  version_prefix: {PREFIX}\n  mode: {loop_mode}\n"
        "  request: {sampling: {max_tokens: 250}}\n"
        for name, loop_mode in (("rollyard", "train"), ("rollyard-eval", "eval"))
    )
    (folder / "agent_loops.yaml").write_text(loops)
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"trainer.v1.trainer_mode={mode}",
                f"trainer.default_local_dir={folder / mode}",
                "trainer.save_freq=1",
                "algorithm.adv_estimator=grpo",
                f"data.train_files={folder / 'train.jsonl'}",
                f"data.val_files={folder / 'eval.jsonl'}",
                f"data.train_batch_size={GROUPS}",
                "data.max_prompt_length=200",
                "data.max_response_length=300",
                "data.dataloader_num_workers=0",
                "data.shuffle=false",
                f"actor_rollout_ref.model.path={model}",
                f"{rollout}.name=vllm",
                f"{rollout}.n={SAMPLES}",
                f"{rollout}.agent.num_workers=1",
                f"{rollout}.agent.default_agent_loop=rollyard",
                f"{rollout}.agent.agent_loop_config_path={folder / 'agent_loops.yaml'}",
                f"{rollout}.val_kwargs.temperature=0",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            ],
        )


def write(**facts: Any) -> None:
    print("VERL", json.dumps(facts, default=float), flush=True)  # numpy has numbers of its own


def train(trainer: Any) -> None:
    """Compute the advantages of the step's next batch, and write the batch."""
    import transfer_queue as tq

    batch, metrics = trainer.replay_buffer.sample(trainer.global_steps, "train", GROUPS)
    write(what="metrics", **metrics)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"])
    data["old_log_probs"] = data.pop("rollout_log_probs")  # the actor would compute them
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=data)
    trainer._compute_advantage(batch, {})
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[*TENSORS, "extra_fields"])
    for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        row = {name: data[name][i].tolist() for name in TENSORS}
        extra = data["extra_fields"][i]
        write(what="sample", step=trainer.global_steps, key=key, tag=tag, extra=getattr(extra, "data", extra), **row)
    tq.kv_clear(keys=batch.keys, partition_id="train")


def main() -> None:
    import ray
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

    mode, folder, kubeconfig, model = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:5]
    resumed, state = "resume" in sys.argv, folder / "transfer_queue"
    config = config_of(mode, folder, kubeconfig, model)
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, _temp_dir=os.environ["RAY_TMPDIR"])
    tq.init(config.transfer_queue)
    trainer = get_trainer_cls(mode)(config)
    trainer._init_tokenizer()
    trainer._init_dataloader()
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])  # the pool scores
    trainer.agent_loop_manager = AgentLoopManagerTQ.create(config=trainer.config, llm_client=None)
    if resumed:
        tq.load_checkpoint(state)
        trainer.global_steps = STEPS + 1
        trainer._reissue_inflight_prompts()
        train(trainer)
    for trainer.global_steps in () if resumed else range(1, STEPS + 1):
        trainer.prepare_step()
        write(what="submitted", step=trainer.global_steps)
        if mode != "sync" and trainer.global_steps == STEPS:
            tq.save_checkpoint(state)
            write(what="saved")
            signal.pause()
        train(trainer)
        target = folder / mode / f"global_step_{trainer.global_steps}" / "actor" / "huggingface"
        shutil.copytree(model, target)  # verl's FSDP actor writes its checkpoint there
    if mode == "sync":
        write(what="validation", **trainer._validate())
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
