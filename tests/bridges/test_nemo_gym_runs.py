"""NeMo Gym's own command line, as released, collects rows through the bridge, is killed, and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rollyard.client import AsyncClient
from tests.bridges.test_nemo_gym import PARAMS
from tests.support.bridge_process import BridgeProcess
from tests.support.compatibility import Compatibility, installed
from tests.support.nemo_gym import PYTHONS, NemoGym
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]

ROWS = 32


def task(index: int) -> dict[str, Any]:
    return {"kind": "math", "problem": f"Please tell me the value of {index + 2} * 7", "answer": str((index + 2) * 7)}


@pytest.mark.parametrize("version", list(PYTHONS))
async def test_each_row_ends_once_through_kills_of_the_collection_and_of_the_bridge(
    served: tuple[Yard, AsyncClient], tmp_path: Path, version: str, compatibility: Compatibility
) -> None:
    yard, client = served
    rows = [{"responses_create_params": PARAMS, "verifier_metadata": task(i)} for i in range(ROWS)]
    async with BridgeProcess(yard, "nemo-gym", "--pool", "demo", "--state", str(tmp_path / "state")) as bridge:
        gym = await asyncio.to_thread(NemoGym, tmp_path, version, bridge.url)
        with gym.servers():
            await yard.until(gym.ready)
            killed = gym.collect(rows, "rows")
            await yard.until(lambda: _collected(gym, ROWS // 2), seconds=600)
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait(60)

            resumed = gym.collect(rows, "rows", "+resume_from_cache=true")
            await yard.until(lambda: _collected(gym, ROWS), seconds=600)
            await asyncio.to_thread(bridge.restart)
            assert await asyncio.to_thread(resumed.wait, 600) == 0, (tmp_path / "gym.log").read_text()[-3000:]

            found = gym.collected("rows")
            assert len(found) == 2 * ROWS
            assert len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in found}) == 2 * ROWS
            assert len({row["rollout_id"] for row in found}) == 2 * ROWS
            gym.validate("rows")
            for row in found:
                trajectory = await client.wait(row["rollout_id"])
                compatibility.same("rewards", row["reward"], trajectory.reward)
                own = [item for item in row["response"]["output"] if "generation_token_ids" in item]
                ids = own[-1]["prompt_token_ids"] + own[-1]["generation_token_ids"]
                compatibility.same("tokens", ids, trajectory.segments[0].token_ids[: len(ids)])
                sampled = [p for item in own for p in item["generation_log_probs"]]
                compatibility.same("logprobs", sampled, [p for p in trajectory.segments[0].logprobs if p is not None])

            if version != "0.4.0":
                await _episodes(gym, tmp_path)
            compatibility.row(
                "NeMo Gym", installed("nemo-gym", gym.python), start="`rollyard bridge nemo-gym`", page="nemo-gym.md",
                ran="`gym eval run` collects 64 rollouts; the collection and the bridge are killed and go on",
                missing={
                    "mask": "each turn has its prompt apart from what was sampled",
                    "versions": "its response has no field for them; read them by the `rollout_id`",
                    "groups": "it counts the repeats of a row itself",
                },
            )  # fmt: skip


async def _episodes(gym: NemoGym, folder: Path) -> None:
    """Collect rows in the episode form, of which one is wrong."""
    tasks = [task(0), task(1), {"kind": "math"}]
    rows = [
        {
            "task_id": {"taskset": "math", "task_id": str(i)},
            "task_input": {"responses_create_params": PARAMS, "task_data": {"rollyard": {"task": given}}},
        }
        for i, given in enumerate(tasks)
    ]
    collection = gym.collect(rows, "episodes", "+environment_server_routes={math: rollyard_env}")
    assert await asyncio.to_thread(collection.wait, 600) == 0, (folder / "gym.log").read_text()[-3000:]
    assert len(gym.collected("episodes")) == 4
    gym.validate("episodes")
    for failed in gym.collected("episodes_failures"):
        assert failed["_ng_failure_terminal"]
        assert "reward" not in failed
    assert len(gym.collected("episodes_failures")) == 2


async def _collected(gym: NemoGym, count: int) -> bool:
    return len(gym.collected("rows")) >= count
