"""Driver that reads through pyslurm in a child process, and changes jobs with Slurm's own commands.

The child serves many requests, so the most frequent call, the query of the queue, starts no new process. `sbatch`
submits jobs and `scancel` ends them, as in the cli driver, for two reasons. pyslurm's reader of `#SBATCH` lines drops
unknown options, and fails on values with a space or an `=`. pyslurm cannot cancel a waiting task of an array, because
the task has no job id.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.core.errors import SlurmUnreachable
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import LIMIT_SECONDS, BatchScript, Driver, Job, JobAccount, JobListing, Node, Partition, Site
from rollyard.slurm.batch_script import JOB_PREFIX
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.pyslurm_process import PyslurmProcess
from rollyard.slurm.user_names import known_user

PYTHON_VARIABLE = "ROLLYARD_PYSLURM_PYTHON"


def pyslurm_python() -> Sequence[str]:
    """Return the command line of a Python with pyslurm: the words of PYTHON_VARIABLE, else the server's own Python."""
    return shlex.split(os.environ.get(PYTHON_VARIABLE, "")) or [sys.executable]


class PyslurmDriver:
    name = "pyslurm"

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        python: Sequence[str] | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """`env`: environment of the child and the commands. Default: the environment of this process."""
        source = dict(os.environ if env is None else env)
        self._child = PyslurmProcess(python or pyslurm_python(), source, limit_seconds=limit_seconds)
        self._cli = CliDriver(source, limit_seconds=limit_seconds)

    @property
    def child_pid(self) -> int | None:
        return self._child.pid

    async def version(self) -> str:
        """Return pyslurm's version without a query to Slurm.

        Raises SlurmUnreachable, with the reason, if pyslurm cannot be loaded.
        """
        return str(await self._child.ask("version"))

    async def list_jobs(self) -> JobListing:
        taken_at = time.time()
        return JobListing(taken_at, read_jobs(await self._child.ask("jobs", prefix=JOB_PREFIX)))

    async def submit(self, script: BatchScript) -> list[str]:
        return await self._cli.submit(script)

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        await self._cli.cancel(ids, signal)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        if not ids:
            return {}
        arrays = sorted({int(id.partition("_")[0]) for id in ids})
        found = read_jobs(await self._child.ask("accounting", ids=arrays))
        return {id: found[id] for id in ids if id in found}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        return await self._cli.accounts(ids)

    async def site(self) -> Site:
        return read_site(await self._child.ask("site"))

    async def close(self) -> None:
        await self._child.close()
        await self._cli.close()


async def why_unfit(driver: PyslurmDriver, commands: Driver) -> str:
    """Return why this pyslurm cannot be used; empty if it can.

    A pyslurm that was built for another Slurm release misreads the controller's answers or cannot read them. So the site
    that pyslurm reports is compared with the site that Slurm's own commands report.
    """
    try:
        await driver.list_jobs()
        site, known = await driver.site(), await commands.site()
    except SlurmUnreachable as error:
        return str(error).removeprefix("pyslurm: ")
    if site.version != known.version or site.partitions != known.partitions or set(site.nodes) != set(known.nodes):
        return f"it reads Slurm {known.version} differently from scontrol; use a pyslurm built for this version"
    return ""


def read_jobs(answer: Any) -> dict[str, Job]:
    """Parse the child's answer to `jobs` or `accounting`: id -> job. Raises SlurmUnreachable for a malformed answer."""
    try:
        return {job.id: job for job in map(_job, answer)}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise SlurmUnreachable(f"pyslurm's answer about jobs cannot be read: {error!r}") from None


def _job(fields: Mapping[str, Any]) -> Job:
    state = JobState.read(fields["state"])
    whom = known_user(fields.get("cancelled_by") or "") if state is JobState.CANCELLED else ""
    code = fields["exit_code"] if state.ended else None
    known = {**fields, "state": state, "exit_code": code, "cancelled_by": whom}
    return Job(**known)


def read_site(answer: Any) -> Site:
    """Parse the child's answer to `site`. Raises SlurmUnreachable for a malformed answer."""
    try:
        nodes: dict[str, Node] = {}
        members: dict[str, set[str]] = {}
        for fields in answer["nodes"]:
            given = dict(fields)
            for partition in given.pop("partitions"):
                members.setdefault(partition, set()).add(given["name"])
            names = {field: frozenset(given[field]) for field in ("features", "gpu_types")}
            nodes[given["name"]] = Node(**{**given, **names})
        partitions = [_partition(one, members.get(one["name"], set())) for one in answer["partitions"]]
        return Site(str(answer["version"]), {p.name: p for p in partitions}, nodes)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise SlurmUnreachable(f"pyslurm's answer about the site cannot be read: {error!r}") from None


def _partition(fields: Mapping[str, Any], nodes: set[str]) -> Partition:
    names = {key: None if fields[key] is None else frozenset(fields[key]) for key in ("accounts", "qos")}
    return Partition(**{**fields, **names, "nodes": frozenset(nodes)})
