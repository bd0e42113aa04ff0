"""The server of an example ends with the process that uses it, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.slurm.throwaway.machine import missing
from deploy.slurm.throwaway.options import Options
from tests.support.until import until
from tests.support.yard import ROOT

TRAINER = """
import asyncio, sys
from pathlib import Path
from contextlib import nullcontext
from examples.local_server import local_server, throwaway_slurm
from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec

async def start(kubeconfig):
    allocation = {"setup": "echo x > " + sys.argv[2] + "; exec sleep 3600", "timeLimit": "01:00:00"}
    spec = RolloutPoolSpec.model_validate({"replicas": 1, "allocation": allocation, "inference": {}})
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        await client.apply(RolloutPool(metadata=ObjectMeta(name="sleeps"), spec=spec))

folder = Path(sys.argv[1])
with throwaway_slurm(folder) if "slurm" in sys.argv else nullcontext(({}, "")) as (cluster, _), \
        local_server(folder, cluster) as kubeconfig:
    asyncio.run(start(kubeconfig))
    sys.stdin.read()
"""

pytestmark = pytest.mark.slow(20)


def processes_of(folder: Path) -> list[int]:
    """Processes whose environment or command names the folder: the server, its guard and its jobs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in texts and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


@pytest.mark.parametrize("on", ["processes", "slurm"])
async def test_the_server_and_its_jobs_end_after_the_sigkill_of_their_trainer(tmp_path: Path, on: str) -> None:
    if on == "slurm" and (lacking := missing(Options())):
        pytest.skip(f"no {', '.join(lacking)}; deploy/slurm/install.sh installs Slurm")
    folder, runs = Path(tempfile.mkdtemp(prefix="rollyard-test-")), tmp_path / "runs"  # short, for Slurm's sockets
    command = [sys.executable, "-c", TRAINER, str(folder), str(runs), on]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as trainer:
        await until(lambda: runs.exists() or trainer.poll() is not None)
        assert trainer.poll() is None
        trainer.send_signal(signal.SIGKILL)
    await until(lambda: not processes_of(folder), 120.0, seen=lambda: processes_of(folder))
    assert not folder.exists()
