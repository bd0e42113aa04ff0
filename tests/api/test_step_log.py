"""A trainer's logger gets each training step of its batch once, in order, with the numbers of the server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollyard.client.step_log import step_values
from rollyard.kinds.batch import BatchRequest, DatasetRef
from rollyard.kinds.task import Task
from tests.api.test_batches import client_of, played, tasks
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Serve
from tests.support.released import environment

ROOT = Path(__file__).parents[2]
Logged = list[tuple[int, dict[str, float]]]


class Recorder:
    def __init__(self) -> None:
        self.steps: Logged = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.append((step, dict(values)))


async def test_a_stream_is_logged_step_by_step_and_a_batch_at_its_end(serving: Serve) -> None:
    recorder = Recorder()
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", [Task.model_validate(task) for task in tasks(20)])
        request = BatchRequest(id="s", pool="swe", n=2, step_groups=2, max_staleness=0, dataset=DatasetRef(name="d"))
        stream, seen = client.batch(request, log=recorder), list[int]()
        await client.create_batch(request)
        for upto in (2, 4):
            await played(api)
            while stream.after < upto:
                await anext(stream)
            await stream.acknowledge()
            seen.append(len(recorder.steps))
        assert 1 <= seen[0] <= seen[1]
        assert seen[1] >= 2
        await stream.cancel("cancel")
        assert [group async for group in stream] == []
        target = BatchRequest(id="t", pool="swe", n=2, target=1, dataset=DatasetRef(name="d"))
        await client.create_batch(target)
        await played(api)
        assert len([group async for group in client.batch(target, log=recorder)]) == 1
        history = await client.batch_history("t", series=True)
    assert [step for step, _ in recorder.steps] == [step.step for step in history.steps if step.groups]
    assert [values for _, values in recorder.steps] == [step_values(step) for step in history.steps if step.groups]
    assert recorder.steps[0][1]["rollyard/reward_mean"] == 0.5
    assert recorder.steps[0][1]["rollyard/groups"] == 2


class Broken(Recorder):
    """A logger without a connection: its second step is the only one that it takes."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        super().log(step, values)
        if len(self.steps) != 2:
            raise ConnectionError("no route to the tracking server")


async def test_a_logger_that_fails_ends_no_training_and_is_told_of_once(
    serving: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken()
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", [Task.model_validate(task) for task in tasks(20)])
        request = BatchRequest(id="s", pool="swe", n=2, step_groups=1, max_staleness=0, dataset=DatasetRef(name="d"))
        stream = client.batch(request, log=broken)
        await client.create_batch(request)
        for upto in (1, 2, 3):
            await played(api)
            while stream.after < upto:
                await anext(stream)
            await stream.acknowledge()
        await stream.cancel("cancel")
        async for _ in stream:
            pass
    assert [step for step, _ in broken.steps[:3]] == [0, 1, 2], "each step once, also after a failure"
    told = [r.getMessage() for r in caplog.records if "the logger failed" in r.getMessage()]
    assert [("step 0" in text, "no route to the tracking server" in text) for text in told] == [(True, True)]


@pytest.mark.long
def test_tensorboard_wandb_and_trackio_store_every_value(tmp_path: Path) -> None:
    python = environment("step-loggers", "2026.11", "python3.13") / "bin" / "python"
    steps = [[i, {"rollyard/reward_mean": 0.25 * i, "rollyard/groups": 4.0 + i}] for i in range(3)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-W", "ignore", ROOT / "tests/support/step_loggers.py", tmp_path, json.dumps(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    expected = {str(step): values for step, values in steps}
    assert json.loads(done.stdout.rpartition("RESULTS ")[2]) == dict.fromkeys(
        ("tensorboard", "wandb", "trackio"), expected
    )
