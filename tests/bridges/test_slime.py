"""The rollout function for slime with rollouts of a real pool. slime itself is replaced by the names that it would have."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollyard.client import AsyncClient
from rollyard.core.errors import Invalid, NoProgress, NotFound
from rollyard.trainers.slime import generate_rollout
from tests.support import slime_stand_in
from tests.support.slime_stand_in import DataSource, arguments
from tests.support.yard import MODEL, Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

N = 2


def metadata(index: int, kind: str = "math", **more: str) -> dict[str, Any]:
    problem = f"Please tell me the value of {index + 2} * 5"
    return {"rollyard": {"task": {"kind": kind, "problem": problem, "answer": str((index + 2) * 5), **more}}}


async def run(yard: Yard, step: int, source: Any, *, evaluation: bool = False, **more: Any) -> Any:
    args = arguments(rollyard_kubeconfig=yard.data / "admin.kubeconfig", **more)
    return await asyncio.to_thread(generate_rollout, args, step, source, evaluation)


async def test_a_step_has_the_stored_tokens_and_the_same_rollouts_when_it_runs_again(
    served: tuple[Yard, AsyncClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard, client = served
    slime_stand_in.install(monkeypatch, lambda samples: samples[0].group_index != 2)
    marker = tmp_path / "fails"
    marker.touch()
    rows = [metadata(0), metadata(1, "flaky", fails_while=str(marker)), metadata(2), metadata(3)]
    more = {"dynamic_sampling_filter_path": "filter", "rollout_batch_size": 3}
    source = DataSource(rows, N)
    output = await run(yard, 5, source, **more)
    assert source.drawn == 4
    assert [[len(rollout) for rollout in group] for group in output.samples] == [[1] * N] * 3
    assert output.metrics == {"rollout/without_reward": 1.0, "rollout/filtered_groups": 1.0}
    for group in output.samples:
        for k, (sample,) in enumerate(group):
            t = await client.wait(f"run1-train-5-{sample.group_index}.{k}")
            assert (t.mode, sample.metadata["rollyard_id"], sample.reward) == ("train", t.id, t.reward)
            if t.reward is None:
                assert (sample.status.name, sample.loss_mask) == ("FAILED", [0])
                continue
            (segment,) = t.segments
            n = segment.prompt_length
            assert sample.tokens == segment.token_ids
            assert sample.loss_mask == segment.loss_mask[n:]
            assert sample.rollout_log_probs == [p or 0.0 for p in segment.logprobs[n:]]
            assert sample.weight_versions == list(dict.fromkeys(v for v in segment.weights_version if v))
            assert sample.response == "\n".join(turn.text for turn in t.turns)
    before = {view.id async for view in client.rollouts(pool="demo")}
    again = await run(yard, 5, DataSource(rows, N), **more)
    assert again.samples == output.samples
    assert {view.id async for view in client.rollouts(pool="demo")} == before


async def test_a_step_waits_for_the_checkpoint_of_the_step_before(
    served: tuple[Yard, AsyncClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard, client = served
    slime_stand_in.install(monkeypatch)
    more = {"rollout_batch_size": 1, "rollyard_run": "follows", "rollyard_weights": {"every": 1, "prefix": "slime"}}
    step = asyncio.create_task(run(yard, 1, DataSource([metadata(7)], N), **more))

    async def waits() -> bool:
        try:
            view, _ = await client.rollout("follows-train-1-0.0")
        except NotFound:
            return False
        return "slime0" in str(view.waiting)

    await yard.until(waits)
    shutil.copytree(MODEL, tmp_path / "rollout_0")
    await yard.rollyard("weights", "follow", str(tmp_path), "--pool", "policy", "--once", "--prefix", "slime")
    output = await step
    assert [sample.weight_versions for (sample,) in output.samples[0]] == [["slime0"]] * N


async def test_an_evaluation_has_the_scored_rollouts_of_each_dataset(
    served: tuple[Yard, AsyncClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard, _ = served
    slime_stand_in.install(monkeypatch)
    marker, file = tmp_path / "fails", tmp_path / "eval.jsonl"
    marker.touch()
    rows = [metadata(5, "flaky", fails_while=str(marker)), metadata(6)]
    file.write_text("".join(f"{json.dumps({'text': '?', 'about': row})}\n" for row in rows))
    dataset = SimpleNamespace(
        name="sums", path=str(file), input_key="text", metadata_key="about", n_samples_per_eval_prompt=2, temperature=1.0,
        top_p=1.0, top_k=-1, max_response_len=None, stop=None, stop_token_ids=None, inject_metadata=dict,
    )  # fmt: skip
    found = (await run(yard, 0, None, evaluation=True, eval_datasets=[dataset])).data["sums"]
    assert len(found["rewards"]) == len(found["truncated"]) == len(found["samples"]) == 3
    assert [sample.reward for sample in found["samples"]] == found["rewards"]
    assert found["samples"][0].metadata["rollyard_id"].startswith("run1-eval-0-sums-0.")


async def test_what_cannot_be_run_is_refused_and_groups_without_a_reward_end_the_step(
    served: tuple[Yard, AsyncClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard, _ = served
    slime_stand_in.install(monkeypatch)
    with pytest.raises(Invalid, match="no `rollyard_run`; set it in the file of `--custom-config-path`"):
        await run(yard, 0, None, rollyard_run="")
    with pytest.raises(Invalid, match="`--rollout-top-p` is not 1"):
        await run(yard, 0, None, rollout_top_p=0.9)
    with pytest.raises(Invalid, match="write it in the row's metadata"):
        await run(yard, 0, DataSource([{}], 1), rollout_batch_size=1)
    markers = [tmp_path / f"fails-{i}" for i in range(2)]
    for marker in markers:
        marker.touch()
    broken = [metadata(i, "flaky", fails_while=str(marker)) for i, marker in enumerate(markers)]
    with pytest.raises(
        NoProgress, match="2 groups of step 9 ended without a reward; `rollyard rollouts list` shows them"
    ):
        await run(yard, 9, DataSource(broken, 1), rollout_batch_size=1)
