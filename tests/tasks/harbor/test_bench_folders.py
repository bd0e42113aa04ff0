"""Task folders in the manner of terminal benchmarks: their solutions get 1, and nothing gets 0."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from rollyard.host.sandbox_account import sandbox_account
from rollyard.image_builds.run_build import BuildOptions, run_build
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.harbor_bench_folders import NAMES, bench_root, copy_folders, without_build
from tests.tasks.harbor.conftest import HarborSite

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOOSE = ("three-faults", "missed-jobs", "dirty-orders", "sealed-letter", "health-service")
"""Folders whose files need no build."""


@pytest.mark.parametrize("name", [LOOSE[0], *(pytest.param(name, marks=pytest.mark.long) for name in LOOSE[1:])])
async def test_the_solution_alone_gets_the_reward(site: HarborSite, name: str) -> None:
    folder = without_build(name)
    assert (await site.score(folder, None)).reward == 1.0
    assert (await site.score(folder, "true")).reward == 0.0


@pytest.mark.long
async def test_folders_with_a_build(open_folder: Path) -> None:
    base = await asyncio.to_thread(bench_root, open_folder / "base")
    folders = copy_folders(open_folder / "folders", base)
    for name in sorted({*NAMES} - {*LOOSE}):
        root = open_folder / name
        options = BuildOptions(
            folders / name / "environment", folders=[base], outputs=[str(root)], cache=open_folder / "cache"
        )
        with (open_folder / "output").open("wb") as output:
            await run_build(options, output.fileno(), lambda _: None)
        account = sandbox_account()
        subprocess.run(["chown", "-hR", f"{account.uid}:{account.gid}", root], check=True)
        async with SandboxFactory(find_runtime("bubblewrap")) as factory:
            site = HarborSite(factory, root, root)
            assert (await site.score(without_build(name), None)).reward == 1.0, name
            assert (await site.score(without_build(name), "true")).reward == 0.0, name
