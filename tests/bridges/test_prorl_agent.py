"""ProRL Agent's HTTP interface, as its paper describes it, by a client that knows nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollyard.bridges.prorl_agent.instances import result_of_trajectory
from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Segment, Timings, Trajectory, Turn
from tests.support.bridge_process import BridgeProcess
from tests.support.compatibility import Compatibility
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

SAMPLING = {"model": "hosted_vllm/policy", "api_key": "key", "temperature": 1.0, "top_p": 0.95, "max_iterations": 6}
WORDS = ("prorl-agent", "--pool", "demo", "--kind", "deepscaler=math")


def instance(index: int, **more: Any) -> dict[str, Any]:
    """Make an instance of mathematics in verl's form."""
    prompt = [{"role": "user", "content": f"Please tell me the value of {index} * 3"}]
    truth = {"style": "rule", "ground_truth": str(index * 3)}
    named = {"instance_id": f"math-{index}", "trajectory_id": index, "data_source": "deepscaler"}
    return {**named, "prompt": prompt, "reward_model": truth, "extra_info": {"index": index}, **more}


async def test_a_client_of_the_paper_gets_tokens_rewards_and_timings(
    served: tuple[Yard, AsyncClient], compatibility: Compatibility
) -> None:
    yard, client = served
    async with BridgeProcess(yard, *WORDS) as bridge:
        assert "started" in (await bridge.post("/start", {}))["status"]
        bodies = [{"instance": instance(i), "sampling_params": SAMPLING, "job_id": f"job-{i}"} for i in range(4)]
        results = await asyncio.gather(*(bridge.post("/process", body) for body in bodies))
        for i, result in enumerate(results):
            assert (result["instance_id"], result["trajectory_id"]) == (f"math-{i}", i)
            assert result["critical_error"] is None
            assert all(result["timing"][stage] > 0 for stage in ("init", "run", "eval"))
            trajectory = await client.wait(result["job_id"])
            assert result["resolved"] == (trajectory.reward == 1.0)
            compatibility.same("rewards", result["reward"], trajectory.reward)
            assert trajectory.task.fields == {"problem": f"Please tell me the value of {i} * 3", "answer": str(i * 3)}
            (segment,) = trajectory.segments
            messages = result["messages"]
            compatibility.same("tokens", [id for m in messages for id in m["token_ids"]], segment.token_ids)
            mask = [int(m["role"] == "assistant") for m in messages for _ in m["token_ids"]]
            compatibility.same("mask", mask, segment.loss_mask)
            sampled = [m for m in messages if m["role"] == "assistant"]
            for part, field, stored in (
                ("logprobs", "logprobs", segment.logprobs),
                ("versions", "weights_version", segment.weights_version),
            ):
                compatibility.same(part, [v for m in sampled for v in m[field]], [v for v in stored if v is not None])
            for message in sampled:
                length = len(message["input_ids"])
                assert message["input_ids"] == segment.token_ids[:length]
                assert message["token_ids"] == segment.token_ids[length : length + len(message["token_ids"])]
        assert await bridge.post("/process", bodies[0]) == results[0], "the same job again is the same rollout"
        assert (await bridge.post("/stop", {}))["status"]
        async with bridge.http.get(f"{bridge.url}/status") as answer:
            assert answer.status == 503
        await bridge.post("/start", {})
        async with bridge.http.get(f"{bridge.url}/status") as answer:
            assert (await answer.json())["pending_jobs"] == 0
    compatibility.row(
        "ProRL Agent", "arXiv 2603.18815", start="`rollyard bridge prorl-agent`", page="prorl-agent.md",
        ran="a client that is written after the paper: start, process, the same job again, stop. Its code was not run",
        missing={"groups": "each job is one sample, which the client groups"},
    )  # fmt: skip


async def test_a_fault_is_a_critical_error_without_a_verdict_and_a_job_can_be_cancelled(
    served: tuple[Yard, AsyncClient], tmp_path: Path
) -> None:
    yard, _ = served
    (marker := tmp_path / "fails").touch()
    failing: dict[str, Any] = {"data_source": "flaky", "problem": "Please tell me the value of 2 * 2", "answer": "4"}
    async with BridgeProcess(yard, *WORDS) as bridge:
        body: dict[str, Any] = {"instance": {**failing, "fails_while": str(marker)}, "sampling_params": {}}
        result = await bridge.post("/process", body)
        assert (result["resolved"], result["reward"], result["critical_error"]) == (None, None, "eval")
        assert "cannot be judged" in result["error"]

        slow = {"instance": {"data_source": "code"}, "sampling_params": {}}
        async with bridge.http.post(f"{bridge.url}/process", json=slow) as answer:
            assert answer.status == 422
            assert "solution" in (await answer.json())["detail"]

        wrong: list[tuple[str, Any]] = [
            ("/process", {"instance": instance(1, rollyard="x")}),
            ("/process", {"instance": instance(1, reward_model={"ground_truth": None})}),
            ("/process", {"instance": instance(1), "sampling_params": {"max_iterations": -1}}),
            ("/process", {"instance": instance(1), "job_id": {}}),
            ("/cancel", {"job_id": ["slow"]}),
        ]
        for path, body in wrong:
            async with bridge.http.post(f"{bridge.url}{path}", json=body) as answer:
                assert answer.status in (400, 422), body
                assert (await answer.json())["detail"]

        waits = {"agent": {"type": "command", "command": "sleep 600"}}
        body = {"instance": instance(5, rollyard=waits), "sampling_params": SAMPLING, "job_id": 7}
        going = asyncio.create_task(bridge.post("/process", body))

        async def pending() -> bool:
            async with bridge.http.get(f"{bridge.url}/status") as answer:
                return bool((await answer.json())["pending_jobs"])

        await yard.until(pending)
        async with bridge.http.post(
            f"{bridge.url}/process", json={**body, "instance": {"data_source": "code"}}
        ) as other:
            assert other.status in (409, 422), "the same job with another instance"
        await yard.until(lambda: _cancelled(bridge, 7))
        result = await going
        assert result["resolved"] is None
        assert result["error"].startswith("Cancelled")


async def _cancelled(bridge: BridgeProcess, job: int) -> bool:
    async with bridge.http.post(f"{bridge.url}/cancel", json={"job_id": job}) as answer:
        return answer.status == 200  # not before the submit has arrived


async def test_model_servers_are_those_of_a_pool_of_external_servers(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    external = {"model": {"path": "unused", "servedName": "policy"}, "engine": {"external": {}}}
    manifest = {"apiVersion": "rollyard.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "outside"}}
    key = ObjectKey(kind="InferencePool", namespace="default", name="outside")
    (path := yard.folder / "outside.yaml").write_text(json.dumps({**manifest, "spec": external}))
    await yard.rollyard("apply", "-f", str(path))
    async with BridgeProcess(yard, *WORDS, "--inference-pool", "outside") as bridge:
        await bridge.post("/add_llm_server", {"address": "http://127.0.0.1:9/v1"})
        assert [e.url for e in (await client.get(key)).spec.engine.external.endpoints] == ["http://127.0.0.1:9/v1"]
        await bridge.post("/clear_llm_server", {})
        assert not (await client.get(key)).spec.engine.external.endpoints
    await client.delete(key)
    async with (
        BridgeProcess(yard, *WORDS) as bridge,
        bridge.http.post(f"{bridge.url}/add_llm_server", json={"address": "http://127.0.0.1:9/v1"}) as answer,
    ):
        assert answer.status == 409
        assert "--inference-pool" in (await answer.json())["detail"]


async def test_an_observation_is_a_users_message() -> None:
    segment = Segment(
        token_ids=[1, 2, 3, 4], loss_mask=[0, 1, 0, 1], logprobs=[None, -0.5, None, -0.5],
        weights_version=[None, "v1", None, "v1"], prompt_length=1,
    )  # fmt: skip
    turn = Turn(segment=0, prompt_length=1, response_length=1, text="5", finish_reason="stop", observation="higher")
    turns = [turn, turn.model_copy(update={"prompt_length": 3, "observation": "won"})]
    played = Trajectory(
        id="r", group=None, sample_index=0, attempt=1, status=Status.COMPLETED, reward=1.0, metrics={},
        task=Task(kind="env"), segments=[segment], turns=turns, timings=Timings(), endpoint=None, node=None, error=None,
    )  # fmt: skip
    messages = result_of_trajectory({}, played)["messages"]
    assert [(m["role"], m["content"], m["token_ids"]) for m in messages] == [
        ("user", "", [1]), ("assistant", "5", [2]), ("user", "higher", [3]), ("assistant", "5", [4])
    ]  # fmt: skip
