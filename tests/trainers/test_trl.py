"""Samples for TRL: what a trajectory becomes, and which groups count as taken."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rollyard.kinds.batch import BatchRequest
from rollyard.kinds.rollout import RolloutError, RolloutRequest, Sampling, Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Segment, Timings, Trajectory
from tests.support.lazy_module import LazyModule
from tests.support.yard import MODEL

if TYPE_CHECKING:
    from rollyard.trainers.trl import grpo_rollouts, pushed_weights, stream_worker, task_prompts
else:
    grpo_rollouts = LazyModule("rollyard.trainers.trl.grpo_rollouts")
    pushed_weights = LazyModule("rollyard.trainers.trl.pushed_weights")
    stream_worker = LazyModule("rollyard.trainers.trl.stream_worker")
    task_prompts = LazyModule("rollyard.trainers.trl.task_prompts")

EOS = 9
TASK = {"kind": "math", "problem": "What is 1 + 1?", "answer": "2"}


def segment(*tokens: tuple[int, int]) -> Segment:
    """Make a segment of (token id, mask)."""
    masks = [mask for _, mask in tokens]
    return Segment(
        token_ids=[id for id, _ in tokens],
        loss_mask=masks,
        logprobs=[-0.5 if mask else None for mask in masks],
        weights_version=["v1" if mask else None for mask in masks],
        prompt_length=masks.index(1) if 1 in masks else len(masks),
    )


def trajectory(*segments: Segment, reward: float | None = 1.0) -> Trajectory:
    failed = RolloutError(reason="SandboxLost", message="the sandbox is gone")
    return Trajectory(
        id="r1", group=None, sample_index=0, attempt=1, metrics={}, turns=[], timings=Timings(), endpoint=None, node=None,
        status=Status.COMPLETED if reward is not None else Status.INFRA_FAILED,
        error=None if reward is not None else failed,
        reward=reward, task=Task.model_validate(TASK), segments=list(segments),
    )  # fmt: skip


TWO_TURNS = segment((1, 0), (2, 0), (3, 1), (4, 1), (5, 0), (6, 1))


def test_a_sample_has_the_tokens_of_the_segment_and_masks_what_was_not_sampled() -> None:
    sample = grpo_rollouts.sample_of(trajectory(TWO_TURNS), EOS)
    assert (sample.prompt_ids, sample.completion_ids) == ([1, 2], [3, 4, 5, 6])
    assert (sample.env_mask, sample.logprobs) == ([1, 1, 0, 1], [-0.5, -0.5, 0.0, -0.5])


def test_of_several_segments_the_one_with_the_most_sampled_tokens_is_taken_and_the_rest_is_counted() -> None:
    made = grpo_rollouts.columns([trajectory(segment((1, 0), (2, 1)), TWO_TURNS)], EOS)
    assert made["completion_ids"] == [[3, 4, 5, 6]]
    assert made["rollout_left_out_tokens"] == [1]


@pytest.mark.parametrize("segments", [(), (TWO_TURNS,)], ids=["before the first token", "after some tokens"])
def test_a_rollout_without_a_reward_is_a_sample_with_nothing_to_train_on(segments: tuple[Segment, ...]) -> None:
    made = grpo_rollouts.columns([trajectory(*segments, reward=None), trajectory(TWO_TURNS)], EOS)
    assert made["completion_ids"][0] == [EOS]
    assert made["env_mask"][0] == [0]
    logged: dict[str, float] = {}
    fields = {name: made[name] for name in made if name.startswith("rollout_")}
    rewards = grpo_rollouts.rollout_reward([], completions=[], log_metric=logged.__setitem__, **fields)
    assert rewards == [None, 1.0]
    assert logged["rollout/without_reward"] == 0.5


def test_repeated_prompts_are_one_group() -> None:
    one, other = json.dumps(TASK), json.dumps({**TASK, "problem": "What is 2 + 2?"})
    plain = RolloutRequest(pool="p", task=Task(kind="unset"), min_weights_version="step3")
    made = grpo_rollouts.group_requests([one] * 4 + [other] * 4 + [one], task_prompts.task_of, plain)
    assert [(request.n, request.task.fields["problem"][8]) for request in made] == [(4, "1"), (4, "2"), (1, "1")]
    assert {(request.pool, request.min_weights_version) for request in made} == {("p", "step3")}


def test_the_sampling_of_the_trainers_arguments_is_the_default() -> None:
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    made = grpo_rollouts.trainer_sampling(SimpleNamespace(**given, max_completion_length=64))
    assert made == Sampling(temperature=0.7, top_p=0.9, max_tokens=64)


def test_a_dataset_carries_tasks_as_prompts_and_other_prompts_are_refused_with_a_way_out() -> None:
    dataset = task_prompts.task_dataset([TASK])
    assert task_prompts.task_of(dataset["prompt"][0]) == Task.model_validate(TASK)
    with pytest.raises(ValueError, match=r"'What is 1 \+ 1\?' is not a task as JSON; make the dataset with"):
        task_prompts.task_of("What is 1 + 1?")


def test_a_group_is_taken_when_the_trainer_has_all_its_samples_and_those_of_all_before_it() -> None:
    samples = stream_worker.SampleQueue()
    for delivery, count in ((4, 0), (5, 2), (6, 0), (7, 1)):
        samples.put_group(delivery, [SimpleNamespace(group_id=delivery) for _ in range(count)])
    taken = [samples.taken]
    for _ in range(3):
        samples.get_nowait()
        taken.append(samples.taken)
    assert taken == [4, 4, 6, 7]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"target": 4}, "set `step_groups`"), ({"step_groups": 2, "max_staleness": 0}, "must be at least 1")],
)
def test_a_request_that_the_trainer_cannot_use_is_refused_at_once(fields: dict[str, Any], words: str) -> None:
    request = BatchRequest.model_validate({"pool": "p", "tasks": [TASK], **fields})
    unused: Any = None
    with pytest.raises(ValueError, match=words):
        stream_worker.StreamWorker(unused, request, unused)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # peft uses the old name
def test_a_model_with_an_adapter_is_pushed_merged_under_its_own_names_and_trained_on_unmerged() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    def loaded() -> Any:
        return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    settings = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"])
    model, plain = get_peft_model(loaded(), settings), loaded()
    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            torch.nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    ids = torch.arange(20)[None]
    plain.load_state_dict(pushed_weights.whole_model(model))
    assert torch.allclose(plain(ids).logits, model(ids).logits, atol=1e-2)
    assert all(torch.allclose(before[name], tensor, atol=1e-5) for name, tensor in model.named_parameters())
    assert pushed_weights.whole_model(plain) is plain


def test_importing_rollyard_and_its_client_imports_no_trainer() -> None:
    program = (
        "import sys, rollyard.trainers.verl.session_samples, rollyard.client.sync_client; "
        "print({*sys.modules} & {'trl', 'datasets', 'verl', 'ray', 'skyrl', 'slime', 'torch'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "set()"
