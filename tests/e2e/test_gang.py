"""A model server that spans nodes: started by srun as one, and ended as one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.engine.vllm.installed_vllm import MARK
from tests.support.cluster import Cluster
from tests.support.slurm_field import Field, field_on
from tests.support.yard import kill

pytestmark = pytest.mark.slow(30)

# In vLLM's place: the first rank serves the tiny policy once the second has come to the address that it was told.
PYTHON = """#!{python}
import json, os, socket, subprocess, sys, time

words = sys.argv[1:]
if words[0] == "-c":  # which vLLM is it?
    options = ["--uds", "--headless", "--nnodes", "--node-rank", "--master-addr", "--master-port"]
    told = {"version": "0.32.0", "device": "cuda", "named": True, "options": options}
    print({mark!r} + (json.dumps(told) if "parse_args" in words[1] else "here"))
    sys.exit()
option = lambda name: words[words.index(name) + 1]
rank, at = int(option("--node-rank")), (option("--master-addr"), int(option("--master-port")))
if rank == 0:
    with socket.create_server(at) as server:
        other, _ = server.accept()
        engine = ["-m", "rollyard.engine.embedded", "--model", words[words.index("serve") + 1], "--uds", option("--uds")]
        sys.exit(subprocess.call([{python!r}, *engine, "--served-name", option("--served-model-name")]))
assert "--headless" in words
while True:
    try:
        socket.create_connection(at).recv(1)  # until the first has gone
    except OSError:
        time.sleep(0.1)
"""


@pytest.fixture
async def field(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(cluster, tmp_path_factory) as found:
        yield found


def stand_in(folder: Path) -> str:
    python = folder / "vllm-python"
    text = PYTHON.replace("{python!r}", repr(sys.executable)).replace("{python}", sys.executable)
    python.write_text(text.replace("{mark!r}", repr(MARK)))
    python.chmod(0o755)
    return str(python)


async def test_it_serves_over_two_nodes_and_a_dead_rank_fails_it_whole(field: Field) -> None:
    vllm = {"python": stand_in(field.yard.folder), "pipelineParallelSize": 2}
    spans = {"replicas": 1, "engine": {"embedded": None, "vllm": vllm}, "allocation": {"nodes": 2}}
    await field.begin(policy=spans, demo={"replicas": 1})
    (first,) = await field.allocations("InferencePool")
    nodes = (await field.slurm("squeue", "-h", "-j", str(first.status.job_id), "-o", "%D")).split()
    assert nodes == ["2"]
    (member,) = field.yard.processes("--headless")
    kill(member)
    ended = await field.ended(first, "FAILED", "GONE")
    assert "rank 1 of the engine has died: killed by signal 9 (KILL)" in ended.status.reason
    await field.all_is_well(jobs=2)

    # What drains ends on every node, and its job has not failed: it leaves, or is cancelled once nothing is in its hands.
    second = await field.running("InferencePool")
    assert second.metadata.name != first.metadata.name
    await field.apply(policy={**spans, "allocation": {"nodes": 2, "timeLimit": "00:50:00"}}, demo={"replicas": 1})
    job = str(second.status.job_id)

    async def over() -> str:
        state = await asyncio.to_thread(field.cluster.state, job)
        return state if state not in ("RUNNING", "COMPLETING") else ""

    assert await field.yard.until(over, 300) in ("COMPLETED", "CANCELLED")
    await field.all_is_well(jobs=2)
    headless = field.yard.processes("--headless")
    assert len(headless) == 1
