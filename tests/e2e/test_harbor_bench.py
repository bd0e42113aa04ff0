"""Eight task folders of Harbor on Slurm: their images are built in a job array, and checks find them sound."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.harbor_bench_folders import NAMES, bench_root, copy_folders
from tests.support.yard import Yard, end

pytestmark = [pytest.mark.slow(120), pytest.mark.long]


async def test_folders_are_built_checked_and_tried_on_slurm(
    cluster: Cluster, open_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = Yard(tmp_path_factory.mktemp("yard"), cluster)
    root = await asyncio.to_thread(bench_root, open_folder / "root")
    folders = str(copy_folders(open_folder / "folders", root))
    tasks, report, some = (open_folder / name for name in ("tasks.jsonl", "report.jsonl", "some.jsonl"))
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
            words = ["--images", str(open_folder / "images"), "--allow-folder", str(root), "--cluster", "slurm"]
            _, said = await yard.rollyard("tasks", "import", "harbor", folders, *words, "-o", str(tasks), seconds=1800)
            assert said.splitlines()[-1].split() == ["8", "converted"], said
            out, _ = await yard.rollyard(
                "tasks", "check", str(tasks), "--pool", "demo", "--runs", "1", "-o", str(report), seconds=1800
            )
            print(out)
            verdicts = [json.loads(line)["verdict"] for line in report.read_text().splitlines()]
            assert verdicts == ["sound"] * len(NAMES), report.read_text()
            some.write_text("".join(tasks.read_text().splitlines(keepends=True)[:2]))
            await yard.rollyard("submit", "-f", str(some), "--pool", "demo", "--wait", seconds=1800)
            rewards = [view.reward async for view in client.rollouts() if not view.id.startswith("check-")]
            assert rewards == [0.0, 0.0], "the tiny policy does no work"
    finally:
        await end(yard)
        cluster.clear()
