"""A group of eight in which four fail, each in its own way, and groups in which all fail: what each adapter hands over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from rollyard.bridges.nemo_gym.rows import Row, aggregate, response_of
from rollyard.client.advantages import group_advantages
from rollyard.client.training_rows import collate
from rollyard.core.errors import NoReward
from rollyard.kinds.rollout import Status
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.slime.samples import group_rewards
from rollyard.trainers.slime.samples import samples_of as slime_samples
from rollyard.trainers.verl.session_samples import LoopSettings
from rollyard.trainers.verl.session_samples import samples_of as verl_samples
from rollyard.trajectory import Trajectory, Turn
from rollyard.trajectory.columns import columns_of
from tests.support.lazy_module import LazyModule
from tests.support.slime_stand_in import Sample, arguments
from tests.trainers.test_skyrl import output
from tests.trainers.test_trl import EOS, TWO_TURNS, segment, trajectory

if TYPE_CHECKING:
    from rollyard.trainers.trl import grpo_rollouts
else:
    grpo_rollouts = LazyModule("rollyard.trainers.trl.grpo_rollouts")

Trained = list[tuple[str, list[int]]]
"""Each row's rollout, and the row's tokens to train on."""
REWARDS = [1.0, 0.0, 1.0, 1.0]
TURN = Turn(segment=0, prompt_length=2, response_length=2, text="", finish_reason="stop")


def ended(number: int, **changes: Any) -> Trajectory:
    return trajectory(TWO_TURNS, reward=changes.pop("reward", None)).model_copy(
        update={"id": f"r{number}", "sample_index": number, "turns": [TURN], **changes}
    )


FAULTS = [
    ended(4, status=Status.INFRA_FAILED, segments=[], turns=[]),  # its sandbox was killed at the start
    ended(5, status=Status.INFRA_FAILED),  # its sandbox was killed in a later turn
    ended(6, status=Status.FAILED),  # its judge was killed
    ended(7, status=Status.CANCELLED, segments=[segment((1, 0), (2, 0), (3, 1))]),
]
GROUP = [*(ended(i, reward=reward) for i, reward in enumerate(REWARDS)), *FAULTS]


def in_arrays(group: Sequence[Trajectory]) -> Trained:
    rows = collate(columns_of(group), groups=[0] * len(group))
    assert rows.advantages.tolist() == pytest.approx(group_advantages(REWARDS).tolist()), "those of the four"
    return [
        (group[number].id, ids[mask == 1].tolist())
        for number, ids, mask in zip(rows.rollout, rows.input_ids, rows.loss_mask, strict=True)
    ]


def in_trl(group: Sequence[Trajectory]) -> Trained:
    made = grpo_rollouts.columns(group, EOS)
    assert made["rollout_reward"] == [t.reward for t in group], "TRL leaves None out of the mean of a group"
    return masked(made["rollout_id"], made["completion_ids"], made["env_mask"])


def in_skyrl(group: Sequence[Trajectory]) -> Trained:
    made = output(*group, names="aaaaaaaa")
    scored = [t.reward for t in group if t.reward is not None]
    assert sum(made["rewards"]) / len(group) == pytest.approx(sum(scored) / len(scored) if scored else 0.0)
    assert made["rollout_metrics"]["rollout/without_reward"] == len(group) - len(scored)
    return masked([t.id for t in group], made["response_ids"], made["loss_masks"])


def in_slime(group: Sequence[Trajectory]) -> Trained:
    samples = [s for i, t in enumerate(group) for s in slime_samples(Sample(group_index=0, index=i), t)]
    _, gains = group_rewards(arguments(grpo_std_normalization=False), samples)
    scored = [t.reward for t in group if t.reward is not None]
    mean = sum(scored) / max(1, len(scored))
    assert gains == pytest.approx([0.0 if s.reward is None else s.reward - mean for s in samples])
    assert [s.remove_sample for s in samples] == [True if t.reward is None else None for t in group]
    ids = [s.tokens[-s.response_length :] for s in samples]
    return masked([s.metadata["rollyard_id"] for s in samples], ids, [s.loss_mask for s in samples])


def in_verl(group: Sequence[Trajectory]) -> Trained:
    """verl counts a session that raises as failed."""
    settings, made = LoopSettings("p", 8, 8, CheckpointVersions()), []
    for one in group:
        if one.reward is None:
            with pytest.raises(NoReward):
                verl_samples(one, settings, logprobs=True)
        else:
            made += verl_samples(one, settings, logprobs=True)
    names = [sample["extra_fields"]["rollout_id"] for sample in made]
    return masked(names, [sample["response_ids"] for sample in made], [sample["response_mask"] for sample in made])


def in_nemo_gym(group: Sequence[Trajectory]) -> Trained:
    made = [response_of(Row({}), one, 0.0) for one in group]
    scored = [answer for answer in made if "response" in answer]
    assert all("_ng_failure_class" in answer for answer in made if "response" not in answer)
    means = aggregate(made)["agent_metrics"]
    assert means["rows_without_reward"] == len(group) - len(scored)
    assert means.get("mean/reward") == (pytest.approx(0.75) if scored else None)
    return [(answer["rollout_id"], answer["response"]["output"][0]["generation_token_ids"]) for answer in scored]


def masked(names: Sequence[str], ids: Sequence[list[int]], masks: Sequence[list[int]]) -> Trained:
    pairs = [zip(own, mask, strict=True) for own, mask in zip(ids, masks, strict=True)]
    found = [(name, [id for id, one in pair if one]) for name, pair in zip(names, pairs, strict=True)]
    return [row for row in found if row[1]]


ADAPTERS: dict[str, Callable[[Sequence[Trajectory]], Trained]] = {
    "arrays": in_arrays, "TRL": in_trl, "SkyRL": in_skyrl, "slime": in_slime, "verl": in_verl, "NeMo Gym": in_nemo_gym,
}  # fmt: skip


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_token_of_a_failed_member_is_trained_on_and_it_moves_no_mean(adapter: str) -> None:
    sampled = [3, 4] if adapter == "NeMo Gym" else [3, 4, 6]  # of the first turn there
    assert ADAPTERS[adapter](GROUP) == [(f"r{i}", sampled) for i in range(4)]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_group_of_failed_members_has_nothing_to_train_on(adapter: str) -> None:
    if adapter == "arrays":
        with pytest.raises(ValueError, match="no rollout has a reward"):
            collate(columns_of(FAULTS))
    else:
        assert ADAPTERS[adapter](FAULTS) == []
