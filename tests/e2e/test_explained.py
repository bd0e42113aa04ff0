"""Explanations before a submit, and of everything that waits, runs or has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.support.cluster import Cluster
from tests.support.slurm_field import Field, field_on
from tests.support.yard import MODEL, ROOT, merge

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(50)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def field(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Field]:
    async with field_on(cluster, tmp_path_factory) as found:
        yield found
    with contextlib.suppress(AssertionError):  # the node is not drained: no test failed halfway
        await asyncio.to_thread(cluster.run, "scontrol", "update", "NodeName=n3", "State=RESUME")


def environment(field: Field) -> dict[str, str]:
    return {**os.environ, "HOME": str(field.yard.folder)}


def manifest(**changes: dict[str, Any]) -> str:
    objects = list(yaml.safe_load_all((ROOT / "examples" / "demo" / "pools.yaml").read_text()))
    for found in objects:
        if found["kind"] == "InferencePool":
            found["spec"]["model"]["path"] = str(MODEL)
        merge(found["spec"], changes.get(found["metadata"]["name"], {}))
    return yaml.safe_dump_all(objects)


AWAY: dict[str, Any] = {"policy": {"replicas": 1}, "demo": {"replicas": 1}}


async def test_what_is_going_to_wait_is_warned_of_and_its_logs_say_why(field: Field) -> None:
    await field.slurm("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=fan")
    await field.yard.until(lambda: drained(field))
    field.yard.stop()  # a new one looks at the nodes at once, and not within the minute
    field.yard.start()
    await field.connect()
    waits = manifest(policy={"replicas": 0}, demo={"replicas": 1, "allocation": {"nodelist": ["n3"]}})

    async def warned() -> bool:
        _, err = await field.yard.rollyard("apply", "--dry-run=server", "-f", "-", text=waits)
        return err.startswith("Warning: no suitable node is usable now: n3 is ")

    await field.yard.until(warned)
    await field.yard.rollyard("apply", "-f", "-", text=waits)

    async def pending() -> bool:
        return any(job.state == "PENDING" and job.reason for job in await field.yard.jobs())

    await field.yard.until(pending)
    (allocation,) = await field.yard.until(lambda: known(field))
    name = allocation.metadata.name
    _, err = await field.yard.rollyard("logs", name, code=1)
    assert f"allocation '{name}' has no output yet: job {allocation.status.job_id} is PENDING" in err
    out, _ = await field.yard.rollyard("describe", f"allocation/{name}")
    assert "Expected start:" in out
    following = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollyard.cli.main", "logs", "-f", name,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment(field), cwd=ROOT,
    )  # fmt: skip
    assert following.stderr is not None
    said = (await asyncio.wait_for(following.stderr.readline(), 60)).decode()
    assert f"{name}: job {allocation.status.job_id} is PENDING" in said
    await field.slurm("scontrol", "update", "NodeName=n3", "State=RESUME")
    await field.yard.until(lambda: registered(field))
    field.yard.stop()  # who follows goes on where it was
    field.yard.start()
    await field.connect()
    await field.slurm("scancel", str(allocation.status.job_id))
    out = (await asyncio.wait_for(following.communicate(), 120))[0].decode()
    assert following.returncode == 0
    log = await asyncio.to_thread(next(field.yard.data.glob(f"allocations/*{name}/job.log")).read_text)
    assert out == log != ""
    out, _ = await field.yard.rollyard("logs", "rp/demo", "--previous", "--tail=1")
    assert out == log.splitlines(keepends=True)[-1]
    out, _ = await field.yard.rollyard("describe", f"allocation/{name}")
    assert "CANCELLED" in out


async def test_a_change_is_shown_before_it_is_made(field: Field) -> None:
    await field.yard.delete_pools(field.client)  # those of the last test
    await field.yard.until(lambda: field.yard.nothing_left(field.client))
    out, _ = await field.yard.rollyard("apply", "--dry-run=server", "-f", "-", text=manifest())
    assert "rolloutpool/demo created (server dry run)" in out
    assert "#SBATCH --time=01:00:00" in out
    assert "would submit 2 jobs of 1 node, 1 CPUs" in out
    assert "in partition main, the default" in out
    out, _ = await field.yard.rollyard("diff", "-f", "-", text=manifest(), code=1)
    assert "+++ applied/rolloutpool/default/demo\n" in out
    assert await field.yard.jobs() == []

    await field.yard.rollyard("apply", "-f", "-", text=manifest(**AWAY))
    assert await field.yard.rollyard("diff", "-f", "-", text=manifest(**AWAY)) == ("", "")
    await field.yard.ready(field.client)
    longer = manifest(**{**AWAY, "demo": {"replicas": 1, "allocation": {"timeLimit": "02:00:00"}}})
    out, _ = await field.yard.rollyard("diff", "-f", "-", text=longer, code=1)
    assert "-    timeLimit: 01:00:00" in out
    assert "-#SBATCH --time=01:00:00\n+#SBATCH --time=02:00:00" in out
    assert "would replace 1 job by as many of 1 node, 1 CPUs, 0 GPUs" in out
    out, _ = await field.yard.rollyard(
        "diff", "-f", "-", text=manifest(demo={"allocation": {"gpusPerNode": 64}}), code=2
    )
    assert "timeLimit" not in out
    _, err = await field.yard.rollyard("diff", "-f", "nowhere.yaml", code=2)
    assert "does not exist" in err


async def drained(field: Field) -> bool:
    site = await field.yard.driver.site()
    return not site.nodes["n3"].usable


async def registered(field: Field) -> bool:
    return (await field.allocations())[0].status.ready


async def known(field: Field) -> list[Any] | None:
    found = await field.allocations()
    return found if found and found[0].status.job_state == "PENDING" and found[0].status.reason else None
