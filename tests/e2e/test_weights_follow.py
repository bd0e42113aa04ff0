"""A trainer that only writes checkpoints: each whole one is served, no half one ever is, and the command may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.client import AsyncClient
from rollyard.engine.weights.source import folder_checksum
from rollyard.kinds.rollout import Status
from rollyard.kinds.weights import WeightsStatus
from tests.support.live_weights import current_version, other_weights, pool_of, serves, versions
from tests.support.yard import MODEL, ROOT, Yard, requests

pytestmark = pytest.mark.slow(40)


class Trainer:
    """Writes checkpoints as verl does, whole ones and others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.whole = folder, dict[str, str]()
        (folder.parent / "prepared").mkdir()

    def path(self, step: int) -> Path:
        return self.folder / f"global_step_{step}" / "actor" / "huggingface"

    def prepare(self, step: int) -> Path:
        return other_weights(MODEL, self.folder.parent / "prepared" / str(step), seed=step, amount=0.01)

    def rename(self, step: int) -> None:
        prepared = self.prepare(step)
        self.whole[f"step{step}"] = folder_checksum(prepared)
        self.path(step).parent.mkdir(parents=True)
        prepared.rename(self.path(step))

    async def write(self, step: int, *, share: float = 1.0, seconds: float = 0.0) -> None:
        """Write in place, config first and the weights in pieces; only a share of them if it is below 1."""
        prepared = self.prepare(step)
        if share == 1.0:
            self.whole[f"step{step}"] = folder_checksum(prepared)
        self.path(step).mkdir(parents=True)
        weights = (prepared / "model.safetensors").read_bytes()
        for file in prepared.iterdir():
            if file.name != "model.safetensors":
                shutil.copyfile(file, self.path(step) / file.name)
        with (self.path(step) / "model.safetensors").open("wb", buffering=0) as file:
            for part in range(4):
                piece = len(weights) // 4 + 1
                file.write(weights[part * piece : (part + 1) * piece][: int(piece * share)])
                await asyncio.sleep(seconds / 4)

    def break_(self, step: int) -> None:
        """Write weights of another shape, whole and with a right header: only the engines see the mistake."""
        import numpy as np
        from safetensors.numpy import save_file

        self.path(step).mkdir(parents=True)
        shutil.copyfile(MODEL / "config.json", self.path(step) / "config.json")
        save_file({"model.norm.weight": np.zeros(3, np.float32)}, self.path(step) / "model.safetensors")


class Follower:
    """The command as a process."""

    def __init__(self, yard: Yard, folder: Path, *options: str) -> None:
        self.output = yard.folder / "follow.txt"
        words = ["weights", "follow", str(folder), "--pool", "policy", *options]
        env = {**os.environ, "HOME": str(yard.folder)}
        env.pop("ROLLYARD_KUBECONFIG", None)
        # a test run in the background ignores Ctrl-C, and so would its children
        command = ["env", "--default-signal=INT", sys.executable, "-m", "rollyard.cli.main", *words]
        with self.output.open("a") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=ROOT)

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


@contextlib.asynccontextmanager
async def followed(yard: Yard, folder: Path, *options: str) -> AsyncIterator[Follower]:
    follower = Follower(yard, folder, *options)
    try:
        yield follower
    finally:
        follower.end(signal.SIGKILL)


async def weights_of(client: AsyncClient) -> WeightsStatus:
    return (await pool_of(client)).status.weights


async def test_each_whole_checkpoint_is_served_while_rollouts_run_and_no_other(yard: Yard, long_run: bool) -> None:
    trainer, count = Trainer(yard.folder / "checkpoints"), 20 if long_run else 6
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1, "autoscaling": None}, demo={"replicas": 1})
        await yard.ready(client)

        async def known() -> bool:
            return await serves(client, await current_version(client), 1)

        await yard.until(known)
        own = await current_version(client)
        ids = await client.submit(requests(4, 0, n=3, sampling={"temperature": 1.0}))

        async with followed(yard, trainer.folder, "--each") as follower:

            async def has(version: str) -> bool:
                return await serves(client, version, 1)

            await yard.until(lambda: any(line.startswith("waits: ") for line in follower.lines()))  # for the folder
            await trainer.write(1, seconds=2.0)
            await yard.until(lambda: has("step1"))
            await trainer.write(2, share=0.5)
            trainer.break_(3)
            await yard.until(lambda: any(line.startswith("step3 failed: ") for line in follower.lines()))
            trainer.rename(4)
            for step in range(5, count):
                await trainer.write(step)

            async def loading() -> bool:
                operation = (await weights_of(client)).operation
                return operation is not None and operation.is_running

            await yard.until(loading)
            follower.end(signal.SIGKILL)
        async with followed(yard, trainer.folder, "--each") as follower:
            trainer.rename(count)
            await yard.until(lambda: has(f"step{count}"))

            async def over() -> bool:
                return follower.lines()[-1].startswith(f"step{count} complete: ")

            await yard.until(over)
            for step in (count + 1, count + 2):
                trainer.rename(step)
            assert follower.end(signal.SIGINT) == 130
        del trainer.whole[f"step{count + 1}"]  # without --each the newest one is served
        said, _ = await yard.rollyard("weights", "follow", str(trainer.folder), "--pool", "policy", "--once")
        assert f"step{count + 1} skipped: step{count + 2} is newer" in said
        shutil.rmtree(trainer.folder / f"global_step_{count + 2}")
        again, _ = await yard.rollyard("weights", "follow", str(trainer.folder), "--pool", "policy", "--once")
        assert f"the folder of step{count + 2} is gone" in again
        ids += await client.submit(requests(2, 0, prefix="last", min_weights_version=f"step{count + 2}"))

        status = await weights_of(client)
        served = {record.version: record.proven for record in status.history if record.version != own}
        text = "\n".join([*follower.lines(), said, again])
        assert list(served) == sorted(trainer.whole, key=lambda version: int(version[4:])), text
        assert served == trainer.whole, text
        assert status.orders == len(trainer.whole) + 1, f"once each, and the broken one:\n{text}"
        assert re.search(r"^step2 (waits|skipped): model.safetensors is cut short or damaged", text, re.M), text
        ended = await yard.gather(client, ids)
        assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}
        assert {version for t in ended for version in versions(t)} <= {own, *trainer.whole}
