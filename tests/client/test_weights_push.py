"""Folders of a push: those that engines may read stay, also when a push fails and is retried."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollyard.client.kubeconfig import Context
from rollyard.client.weights_push import WeightsPush
from rollyard.core.errors import Conflict, NoProgress
from rollyard.kinds.base import KindObject, ObjectKey, evolve
from rollyard.kinds.weights import WeightsRecord, WeightsStatus, WeightsUpdate
from rollyard.server.weights import pool_update
from tests.support import make


@dataclass
class Pool:
    """The weights of one pool; a test says how the next update ends. None: it does not end."""

    end: str | None = "Complete"
    status: WeightsStatus = field(default_factory=WeightsStatus)
    context: Context = field(default_factory=lambda: Context("http://unused", None, "token", "default", None))

    async def get(self, key: ObjectKey) -> KindObject:
        return make.inference_pool()

    async def weights_status(self, namespace: str, pool: str) -> WeightsStatus:
        return self.status

    async def update_weights(self, namespace: str, pool: str, update: WeightsUpdate) -> WeightsStatus:
        self.status, _ = pool_update.begin(self.status, "/model", update, datetime.now(UTC))
        return self.status

    async def wait_weights(self, namespace: str, pool: str, version: str) -> WeightsStatus:
        while self.end is None:
            await asyncio.sleep(3600)
        self.finish(self.end)
        return self.status

    def finish(self, end: str) -> None:
        assert self.status.operation is not None
        target = self.status.operation.target
        served = {"current": target, "history": [*self.status.history, target]} if end == "Complete" else {}
        self.status = evolve(self.status, operation=evolve(self.status.operation, phase=end), **served)

    @property
    def folder(self) -> Path:
        """Folder of the last update."""
        assert self.status.operation is not None
        return Path(str(self.status.operation.target.path))


class Model:
    def __init__(self, text: str) -> None:
        self.text = text

    def save_pretrained(self, folder: Any) -> None:
        (folder / "model").write_text(self.text)


async def pushed(pool: Pool, weights: WeightsPush, text: str, version: str | None = None) -> Path:
    await weights.push(Model(text), version)
    assert pool.folder.joinpath("model").read_text() == text
    return pool.folder


async def failed(pool: Pool, weights: WeightsPush, version: str | None = None) -> Path:
    pool.end = "Failed"
    with pytest.raises(NoProgress):
        await weights.push(Model("failed"), version)
    pool.end = "Complete"
    return pool.folder


async def cancelled(pool: Pool, weights: WeightsPush, version: str | None = None) -> Path:
    pool.end, before = None, pool.status.orders
    push = asyncio.create_task(weights.push(Model("loading"), version))
    while pool.status.orders == before:
        await asyncio.sleep(0.01)
    push.cancel()
    with pytest.raises(asyncio.CancelledError):
        await push
    pool.end = "Complete"
    return pool.folder


@pytest.mark.parametrize("keep", [1, 2])
async def test_a_retry_under_the_same_version_keeps_the_folders_that_are_served(tmp_path: Path, keep: int) -> None:
    pool = Pool()
    async with WeightsPush(pool, "policy", folder=tmp_path, keep=keep) as weights:
        first = await pushed(pool, weights, "a")
        tried = await failed(pool, weights, "b")
        assert first.exists()
        assert tried.exists(), "an engine that ran out of time may still load it"
        second = await pushed(pool, weights, "b", "b")
        assert set(tmp_path.iterdir()) == ({first, second} if keep == 2 else {second})
        third = await pushed(pool, weights, "c", "c")
        assert set(tmp_path.iterdir()) == ({second, third} if keep == 2 else {third})


async def test_a_folder_that_engines_load_stays_when_a_cancelled_push_is_retried(tmp_path: Path) -> None:
    pool = Pool()
    async with WeightsPush(pool, "policy", folder=tmp_path) as weights:
        loading = await cancelled(pool, weights, "a")
        with pytest.raises(Conflict, match="is being loaded"):
            await weights.push(Model("other"), "a")
        assert (loading / "model").read_text() == "loading"
        pool.finish("Complete")
        with pytest.raises(Conflict, match="choose another version"):
            await weights.push(Model("other"), "a")
        assert (loading / "model").read_text() == "loading"


async def test_a_push_without_a_version_never_takes_a_name_that_the_pool_knows(tmp_path: Path) -> None:
    pool = Pool()
    async with WeightsPush(pool, "policy", folder=tmp_path) as weights:
        assert (await cancelled(pool, weights)).name == "step1"
        pool.finish("Complete")
        assert (await failed(pool, weights)).name == "step2"
        assert (await pushed(pool, weights, "c")).name == "step3"
        assert weights.step == 3


async def test_a_folder_of_ours_that_is_served_again_counts_as_new(tmp_path: Path) -> None:
    pool = Pool()
    async with WeightsPush(pool, "policy", folder=tmp_path) as weights:
        first = await pushed(pool, weights, "a")
        await pushed(pool, weights, "b")
        await weights.push(first, "again")
        third = await pushed(pool, weights, "c")
        assert set(tmp_path.iterdir()) == {first, third}


DYING_PUSH = """
import asyncio, os, signal, sys
from rollyard.client.weights_push import WeightsPush
from tests.client.test_weights_push import Model, Pool

class DyingModel(Model):
    def save_pretrained(self, folder):
        super().save_pretrained(folder)
        if sys.argv[2] == "writing":
            os.kill(os.getpid(), signal.SIGKILL)

class DyingPool(Pool):
    async def update_weights(self, namespace, pool, update):
        print(update.path, flush=True)
        if sys.argv[2] == "alive":
            sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with WeightsPush(DyingPool(), "policy", folder=sys.argv[1]) as weights:
        await weights.push(DyingModel("dying"))

asyncio.run(main())
"""


def dying_push(folder: Path, how: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", DYING_PUSH, str(folder), how], text=True, **pipes)


async def test_the_next_push_deletes_what_pushes_left_that_died_before_the_server_knew_them(tmp_path: Path) -> None:
    for how, left in (("writing", ".writing-step1-*"), ("posting", "step1")):
        with dying_push(tmp_path, how) as dead:
            dead.communicate()
        assert dead.returncode == -9
        assert [f.name for f in tmp_path.glob("[!.]*")] == ([] if how == "writing" else ["step1"])
        assert len(list(tmp_path.glob(f"{left}/model"))) == 1
    pool = Pool()
    async with WeightsPush(pool, "policy", folder=tmp_path) as weights:
        first = await pushed(pool, weights, "a")
    assert set(tmp_path.iterdir()) == {first}


async def test_a_push_deletes_no_folder_of_a_live_push_and_none_that_the_server_or_another_pool_knows(
    tmp_path: Path,
) -> None:
    pool = Pool()
    with dying_push(tmp_path, "alive") as push:
        assert push.stdin is not None
        assert push.stdout is not None
        theirs = Path(push.stdout.readline().strip())
        async with WeightsPush(pool, "policy", folder=tmp_path) as weights:
            await pushed(pool, weights, "a", "a")
            assert (theirs / "model").exists(), "its push is alive"
            push.stdin.close()
            push.wait()
            async with WeightsPush(Pool(), "other", folder=tmp_path) as other:
                await other.push(Model("b"), "b")
            assert (theirs / "model").exists(), "another pool does not know whether it is served"
            served = WeightsRecord(version="theirs", path=str(theirs), since=datetime.now(UTC))
            pool.status = evolve(pool.status, history=[*pool.status.history, served])
            await pushed(pool, weights, "c", "c")
    assert (theirs / "model").exists(), "the server had stored it before the push died"
    assert not list(tmp_path.glob(".push-*"))
