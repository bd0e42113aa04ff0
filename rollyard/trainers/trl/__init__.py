"""Rollouts and weights for `GRPOTrainer` and `AsyncGRPOTrainer` of TRL 1.9 or later. docs/trl.md shows their use.

`pip install rollyard[trl]` installs what this package needs.
"""

from rollyard.trainers.trl.grpo_rollouts import rollout_func, rollout_reward
from rollyard.trainers.trl.pushed_weights import PushWeights, WeightTransfer
from rollyard.trainers.trl.stream_worker import StreamWorker
from rollyard.trainers.trl.task_prompts import task_dataset

__all__ = ["PushWeights", "StreamWorker", "WeightTransfer", "rollout_func", "rollout_reward", "task_dataset"]
