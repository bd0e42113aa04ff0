"""Names of slime that its rollout functions use, for tests without slime: it is on GitHub alone.

They were read in slime 0.3.1 (github.com/THUDM/slime, commit a6272da0d4f3d0a08520c99a2f3b4f6c887960dc). A field or a
function that is not here does not exist for these tests.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FIELDS = (
    "group_index", "index", "rollout_id", "prompt", "tokens", "multimodal_inputs", "multimodal_train_inputs",
    "multimodal_train_input_id", "apply_chat_template_kwargs", "response", "response_length", "label", "reward",
    "loss_mask", "weight_versions", "rollout_log_probs", "rollout_top_p_token_ids", "rollout_top_p_token_offsets",
    "rollout_routed_experts", "remove_sample", "teacher_log_probs", "status", "metadata", "generate_function_path",
    "custom_rm_path", "train_metadata", "session_id", "non_generation_time", "spec_info", "prefix_cache_info",
)  # fmt: skip
"""Fields of `slime.utils.types.Sample`, in their order."""


class SampleStatus(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


Sample: Any = dataclasses.make_dataclass(
    "Sample",
    [(name, Any, dataclasses.field(default=None)) for name in FIELDS],
    namespace={"Status": SampleStatus},
)
TrainOutput = dataclasses.make_dataclass("RolloutFnTrainOutput", ["samples", ("metrics", Any, None)])
EvalOutput = dataclasses.make_dataclass("RolloutFnEvalOutput", ["data", ("metrics", Any, None)])


def install(patch: pytest.MonkeyPatch, keep: Callable[[list[Any]], bool] = lambda samples: True) -> None:
    """Make the modules importable. `keep`: the filter that `--dynamic-sampling-filter-path` names."""
    filtered: Any = lambda found, args, samples: SimpleNamespace(keep=found is None or keep(samples))  # noqa: E731
    for name, content in {
        "slime.rollout.base_types": {"RolloutFnTrainOutput": TrainOutput, "RolloutFnEvalOutput": EvalOutput},
        "slime.rollout.filter_hub.base_types": {"call_dynamic_filter": filtered},
        "slime.utils.misc": {"load_function": lambda path: path},
        "slime.utils.data": {"read_file": lambda path: map(json.loads, Path(path).read_text().splitlines())},
        "slime.utils.types": {"Sample": Sample},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)


def arguments(**more: Any) -> Namespace:
    """Return the arguments that the function reads, with slime's defaults, and those of a pool."""
    return Namespace(
        **{
            "rollout_batch_size": 2, "n_samples_per_prompt": 4, "rollout_temperature": 1.0, "rollout_top_p": 1.0,
            "rollout_top_k": -1, "rollout_max_response_len": None, "rollout_stop": None, "rollout_stop_token_ids": None,
            "dynamic_sampling_filter_path": None, "eval_datasets": [], "advantage_estimator": "grpo",
            "rewards_normalization": True, "grpo_std_normalization": True, "rollyard_pool": "demo", "rollyard_run": "run1",
            **more,
        }
    )  # fmt: skip


class DataSource:
    """A source of prompts with a metadata of its own each, in their order."""

    def __init__(self, metadata: list[dict[str, Any]], n: int) -> None:
        self._left, self._n, self.drawn = metadata, n, 0

    def get_samples(self, count: int) -> list[list[Any]]:
        groups = []
        for _ in range(count):
            number = self.drawn
            groups.append(
                [
                    Sample(group_index=number, index=number * self._n + i, metadata=self._left[number])
                    for i in range(self._n)
                ]
            )
            self.drawn += 1
        return groups
