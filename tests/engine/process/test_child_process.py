"""A child's whole process group ends, and what Python would clean up after it is cleaned up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rollyard.engine.process.child_process import EngineCommand, end_child, start_child
from tests.support.until import until
from tests.support.yard import alive, kill

ENGINE = """
import multiprocessing, subprocess, time
lock = multiprocessing.get_context("spawn").Lock()
child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
print(lock._semlock.name.strip("/"), child.pid, flush=True)
time.sleep(1000)
"""


async def test_a_killed_engine_leaves_no_semaphore_and_no_child() -> None:
    engine = await start_child(EngineCommand([sys.executable, "-c", ENGINE]), stdout=asyncio.subprocess.PIPE)
    assert engine.stdout is not None
    name, child = (await engine.stdout.readline()).decode().split()
    semaphore = Path("/dev/shm", f"sem.{name}")
    assert semaphore.exists()
    kill(engine.pid)
    await engine.wait()
    await end_child(engine)
    await until(lambda: not semaphore.exists())
    await until(lambda: not alive(int(child)))
