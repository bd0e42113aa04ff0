"""The server of an example ends with the process that uses it, however that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.until import until
from tests.support.yard import ROOT

TRAINER = """
import asyncio, sys
from pathlib import Path
from examples.local_server import local_server
from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectMeta
from rollyard.kinds.rollout_pool import RolloutPool, RolloutPoolSpec

async def start(kubeconfig):
    allocation = {"setup": "echo x > " + sys.argv[2] + "; exec sleep 3600", "timeLimit": "01:00:00"}
    spec = RolloutPoolSpec.model_validate({"replicas": 1, "allocation": allocation, "inference": {}})
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        await client.apply(RolloutPool(metadata=ObjectMeta(name="sleeps"), spec=spec))

with local_server(Path(sys.argv[1]), {}) as kubeconfig:
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


async def test_the_server_and_its_jobs_end_after_the_sigkill_of_their_trainer(tmp_path: Path) -> None:
    folder, runs = tmp_path / "server", tmp_path / "runs"
    folder.mkdir()
    command = [sys.executable, "-c", TRAINER, str(folder), str(runs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as trainer:
        await until(lambda: runs.exists() or trainer.poll() is not None)
        assert trainer.poll() is None
        trainer.send_signal(signal.SIGKILL)
    await until(lambda: not processes_of(folder), 120.0, seen=lambda: processes_of(folder))
    assert not folder.exists()
