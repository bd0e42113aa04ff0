"""NeMo Gym's agent server: rows of both forms, the same row again, faults, and a bridge that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.bridges.listener import MAX_BODY_BYTES
from rollyard.bridges.nemo_gym.handed_out import HandedOut
from rollyard.client import AsyncClient
from tests.support.bridge_process import BridgeProcess
from tests.support.yard import Yard

pytestmark = pytest.mark.asyncio(loop_scope="package")

PARAMS = {"input": [{"role": "user", "content": "12 * 12"}], "temperature": 1.0, "max_output_tokens": 200}
TASK = {"kind": "math", "problem": "Please tell me the value of 12 * 12", "answer": "144"}


def flat(index: int, task: dict[str, Any] = TASK) -> dict[str, Any]:
    """Make the body that NeMo Gym 0.4 and 0.7 send for a row without `task_id`."""
    row = {"responses_create_params": PARAMS, "verifier_metadata": task, "agent_ref": {"name": "rollyard"}}
    return {**row, "_ng_task_index": index, "_ng_rollout_index": 0}


def episode(rollout: str, task: dict[str, Any] = TASK) -> dict[str, Any]:
    """Make the body that NeMo Gym 0.7 sends for a row with `task_id` and `task_input`."""
    given = {"responses_create_params": PARAMS, "task_data": {"rollyard": {"task": task}}}
    names = {"task_id": {"taskset": "math", "task_id": "1"}, "task_input": given}
    return {"episode_id": {"rollout_id": rollout, "attempt": 0}, "task": names}


def own_items(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if "generation_token_ids" in item]


async def test_a_row_of_either_form_gets_the_rollouts_exact_tokens(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo") as bridge:
        first, second = await asyncio.gather(bridge.post("/run", flat(0)), bridge.post("/run", episode("a-0")))
        assert second["episode_id"] == {"rollout_id": "a-0", "attempt": 0}
        assert second["task_id"] == {"taskset": "math", "task_id": "1"}
        for found in (first, second["result"]):
            trajectory = await client.wait(found["rollout_id"])
            assert found["reward"] == trajectory.reward
            assert found["responses_create_params"] == PARAMS
            (segment,) = trajectory.segments
            seen: list[int] = []
            for item in own_items(found["response"]):
                assert item["prompt_token_ids"][: len(seen)] == seen, "a trainer wants each turn to go on from the last"
                at = len(item["prompt_token_ids"])
                end = at + len(item["generation_token_ids"])
                assert segment.loss_mask[at:end] == [1] * (end - at)
                assert item["generation_log_probs"] == segment.logprobs[at:end]
                seen = item["prompt_token_ids"] + item["generation_token_ids"]
                assert seen == segment.token_ids[:end]
            assert sum(len(i["generation_token_ids"]) for i in own_items(found["response"])) == sum(segment.loss_mask)
            assert found["left_out_tokens"] == 0

        told = await bridge.post("/aggregate_metrics", {"verify_responses": [first, {"_ng_failure_class": "x"}]})
        assert told["key_metrics"] == {"mean/reward": first["reward"], "rows_without_reward": 1.0}


async def test_a_row_that_is_sent_again_attaches_and_a_row_that_is_collected_again_does_not(
    served: tuple[Yard, AsyncClient], tmp_path: Path
) -> None:
    yard, client = served
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo", "--state", str(tmp_path / "state")) as bridge:
        cut = asyncio.create_task(bridge.post("/run", flat(7)))
        ids = {view.id async for view in client.rollouts(pool="demo")}

        async def submitted() -> set[str]:
            return {view.id async for view in client.rollouts(pool="demo")} - ids

        (id,) = await yard.until(submitted)
        await asyncio.to_thread(bridge.restart)  # in the middle of the call
        with pytest.raises(aiohttp.ClientError):
            await cut
        assert (await bridge.post("/run", flat(7)))["rollout_id"] == id
        await asyncio.to_thread(bridge.restart)  # after the answer
        again = (await bridge.post("/run", flat(7)))["rollout_id"]
        assert again != id, "a new collection of the same row wants a new rollout"
        assert await submitted() == {id, again}


async def test_a_fault_is_no_reward_and_ends_no_collection(served: tuple[Yard, AsyncClient], tmp_path: Path) -> None:
    yard, _ = served
    (marker := tmp_path / "fails").touch()
    failing = {**TASK, "kind": "flaky", "fails_while": str(marker)}
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo") as bridge:
        found = await bridge.post("/run", flat(1, failing))
        assert "reward" not in found
        assert (found["_ng_failure_class"], found["_ng_failure_terminal"]) == ("TaskError", True)
        assert "cannot be judged" in found["_ng_failure_message"]
        assert found["failure_kind"] == "verifier_error", "NeMo Gym's own name for it"

        found = (await bridge.post("/run", episode("b-0", {"kind": "math"})))["failure"]
        assert found["terminal"]
        assert found["stage"] == "admission"
        assert "problem" in found["failure_reason"], "the wrong field is named"

        for body, told in (({"verifier_metadata": {}}, "rollyard"), (flat(1) | {"rollyard": {"n": 2}}, "rollyard.n")):
            found = await bridge.post("/run", body)
            assert found["_ng_failure_terminal"]
            assert told in found["_ng_failure_message"]
        async with bridge.http.post(f"{bridge.url}/run", data=b"{") as answer:
            assert (answer.status, (await answer.json())["_ng_failure_terminal"]) == (200, True)


async def test_no_body_gets_another_status_than_200(served: tuple[Yard, AsyncClient]) -> None:
    yard, _ = served
    deep = b'{"verifier_metadata": {"kind": "math", "problem": "", "answer": ' + b"[" * 500 + b"]" * 500 + b"}}"
    bodies = [
        *(flat(0) | {"rollyard": {"sampling": wrong, "task": TASK}} for wrong in ("x", [1], 5)),
        {"episode_id": {"rollout_id": "a"}},
        {"episode_id": {"rollout_id": "a"}, "task": "x"},
        {"episode_id": ["a"], "task": {"task_input": "x"}},
    ]
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo") as bridge:
        raw = [deep, b"\xff", json.dumps({**flat(0), "more": float("nan")}).encode(), b" " * (MAX_BODY_BYTES + 1)]
        for body in [*raw, *(json.dumps(body).encode() for body in bodies)]:
            async with bridge.http.post(f"{bridge.url}/run", data=io.BytesIO(body)) as answer:
                found = await answer.json()
                assert answer.status == 200, body[:99]
                assert found.get("_ng_failure_terminal") or found["failure"]["terminal"], body[:99]
        odd = [{"reward": 1.0, "": 2.0}, {"reward": 1e308}, {"reward": 1e308}, {"reward": 10**400}]
        told = await bridge.post("/aggregate_metrics", {"verify_responses": odd})
        assert told["key_metrics"]["rows_without_reward"] == 1.0


async def test_a_state_file_that_cannot_be_written_gives_a_failure_and_no_reward(
    served: tuple[Yard, AsyncClient], tmp_path: Path
) -> None:
    yard, _ = served
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo", "--state", str(tmp_path / "state")) as bridge:
        with contextlib.closing(sqlite3.connect(tmp_path / "state")) as file:
            file.execute("ALTER TABLE rows RENAME TO lost")
            found = await bridge.post("/run", flat(0))
            assert (found["_ng_failure_terminal"], "reward" in found) == (False, False)
            assert str(tmp_path / "state") in found["_ng_failure_message"]
            file.execute("ALTER TABLE lost RENAME TO rows")
            file.execute("CREATE TRIGGER full BEFORE INSERT ON rows BEGIN SELECT RAISE(FAIL, 'disk full'); END")
            failed = await bridge.post("/run", flat(0))
            assert (failed["_ng_failure_terminal"], "reward" in failed) == (False, False)
            file.execute("DROP TRIGGER full")
        assert (await bridge.post("/run", flat(0)))["rollout_id"].endswith("-0"), "its result was not handed out before"


async def test_a_late_answer_does_not_set_back_the_number_of_results(tmp_path: Path) -> None:
    with contextlib.closing(HandedOut(tmp_path / "state")) as state:
        await state.set_times("row", 2)
        await state.set_times("row", 1)
        assert await state.times("row") == 2


async def test_a_bridge_listens_on_this_machine_alone(served: tuple[Yard, AsyncClient]) -> None:
    yard, _ = served
    _, told = await yard.rollyard("bridge", "nemo-gym", "--pool", "demo", "--listen", "0.0.0.0:0", code=1)
    assert "127.0.0.1:0" in told


async def test_a_bridge_for_a_pool_that_is_not_there_does_not_start(served: tuple[Yard, AsyncClient]) -> None:
    yard, _ = served
    _, told = await yard.rollyard("bridge", "nemo-gym", "--pool", "demon", "--listen", "127.0.0.1:0", code=1)
    assert "demon" in told
