"""Folders with the identity, the token and the log of each allocation's job. The nodes of the job must be able to read
these folders."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from rollyard.core.errors import NotFound
from rollyard.kinds.allocation import Allocation, AllocationTemplate
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import Pool
from rollyard.kinds.schema.object_names import name_problems
from rollyard.reconcilers.job_endings import RECENT_SECONDS, LastOutput
from rollyard.slurm.base import BatchScript, Job
from rollyard.slurm.batch_script import FOLDER, JOB_PREFIX, batch_script
from rollyard.slurm.python_archive import UNPACK, PythonArchive
from rollyard.trust.bearer_tokens import Role
from rollyard.trust.secret_files import write_secret
from rollyard.wire.files import AllocationFile

TAIL_BYTES, TAIL_LINES = 16 << 10, 20
"""Greatest numbers of bytes and lines that are read at the end of a log."""
SLURM_LOG_PREFIXES = ("slurmstepd: ", "srun: ")
"""Beginnings of the lines that Slurm itself writes into a job's log."""
GANG_WAIT_SECONDS = 60


class AllocationFolders:
    """Folders below `<data>/allocations`, 0700, one for each allocation."""

    def __init__(self, data: Path, server_id: str, issue: Callable[[Role, str], str]) -> None:
        self._data = data
        self._server_id = server_id
        self._issue = issue
        self._runtime = PythonArchive(data / "runtime")

    def comment(self, id: str) -> str:
        """Comment that marks a job as ours. `id` is the uid of an allocation, or the id of a burst, which is one array
        job for several allocations."""
        return f"rollyard:{self._server_id}:{id}"

    def owner(self, allocation: Allocation) -> str:
        """Key by which the allocation's job is recognised in Slurm's queue."""
        status = allocation.status
        if status.burst is None:
            return self.comment(allocation.metadata.uid)
        return f"{self.comment(status.burst)}/{status.task}"

    def is_ours(self, job: Job) -> bool:
        return job.comment.startswith(self.comment(""))

    def folder(self, namespace: str, name: str) -> Path:
        """Return the path of an allocation's folder. Only this function makes a path from names, after checking them.

        Raises NotFound for an invalid name.
        """
        for text in (namespace, name):
            if next(name_problems(text), None) is not None:
                raise NotFound(f"allocation {text[:80]!r} does not exist")
        return self._data / "allocations" / f"{namespace}.{name}"

    def log_file(self, namespace: str, name: str) -> Path:
        return self.folder(namespace, name) / "job.log"

    def script(self, allocation: Allocation) -> BatchScript:
        """Job script for one allocation. Writes nothing. Blocks at the first call."""
        meta = allocation.metadata
        folder = self.folder(meta.namespace, meta.name)
        return self._script([allocation], name=meta.name, id=meta.uid, folder=folder)

    def burst_script(self, burst: str, allocations: Sequence[Allocation]) -> BatchScript:
        """Job script for several allocations with the same pool and template. Writes nothing. Blocks at the first
        call."""
        stem = allocations[0].metadata.name.rpartition("-")[0]  # without the index
        return self._script(allocations, name=stem, id=burst, folder=self.burst(burst), tasks=len(allocations))

    def burst(self, id: str) -> Path:
        """Folder of a burst (allocations that are submitted as one job array). The folder has one link for each array
        task. The task's number is the link's name, and the allocation's folder is the target."""
        return self._data / "bursts" / id

    def _script(
        self, allocations: Sequence[Allocation], *, name: str, id: str, folder: Path, tasks: int | None = None
    ) -> BatchScript:
        first, uids = allocations[0], [a.metadata.uid for a in allocations]
        template, archive = first.spec.template, self._runtime.archive(first.spec.template)
        word = "inference-server" if first.spec.pool.kind == "InferencePool" else "node-agent"
        return batch_script(
            template,
            name=f"{JOB_PREFIX}{name}",
            comment=self.comment(id),
            log_path=str(folder / "job.log"),
            directory=str(folder),
            command=[*_launcher(template), sys.executable, "-m", "rollyard.cli.main", word, "--allocation", FOLDER],
            tasks=tasks,
            after_job=first.spec.after_job,
            unpack=["bash", str(UNPACK), str(archive), template.scratch] if archive is not None else (),
            uids=uids if all(uids) else (),  # a preview has none
        )

    def write_burst(self, burst: str, allocations: Sequence[Allocation]) -> None:
        """Write the burst's folder. Blocks."""
        folder = self.burst(burst)
        folder.mkdir(parents=True, mode=0o700)
        for task, allocation in enumerate(allocations):
            meta = allocation.metadata
            (folder / str(task)).symlink_to(self.folder(meta.namespace, meta.name))

    def prepare(self, allocation: Allocation, pool: Pool) -> None:
        """Write the allocation's folder. May be called again. Blocks."""
        self._runtime.pack(allocation.spec.template)
        meta = allocation.metadata
        folder = self.folder(meta.namespace, meta.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        role = Role.ENGINE if isinstance(pool, InferencePool) else Role.NODE
        write_secret(folder / "token", self._issue(role, meta.uid), durable=False)
        file = AllocationFile(
            allocation=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            pool=pool.metadata.name,
            endpoint_file=str(self._data / "endpoint.json"),
            ca_file=str(self._data / "ca.pem"),
            scratch=allocation.spec.template.scratch,
            inference=pool.spec if isinstance(pool, InferencePool) else None,
        )
        write_secret(folder / "allocation.json", file.model_dump_json(), durable=False)

    def renew_token(self, allocation: Allocation, is_current: Callable[[str], bool]) -> bool:
        """Write a new token for a job whose token is not current. Return whether there was one to replace. Blocks."""
        meta = allocation.metadata
        file = self.folder(meta.namespace, meta.name) / "token"
        if not file.exists() or is_current(file.read_text().strip()):
            return False
        role = Role.ENGINE if allocation.spec.pool.kind == InferencePool.__name__ else Role.NODE
        write_secret(file, self._issue(role, meta.uid))
        return True

    def write_script(self, script: BatchScript) -> None:
        """Write the script beside the job's other files, for people to read. Blocks."""
        write_secret(Path(script.directory) / "batch.sh", script.text, durable=False)

    def last_output(self, allocation: Allocation, end: float) -> LastOutput | None:
        """Return the last output in the job's log, if the job wrote it shortly before `end` (Unix seconds); otherwise
        None. Blocks."""
        path = self.log_file(allocation.metadata.namespace, allocation.metadata.name)
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                file.seek(max(0, facts.st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return None
        return last_output(lines, facts.st_mtime, end)

    def remove(self, allocation: Allocation) -> None:
        """Remove the allocation's folder. Remove the burst's folder too if no allocation of the burst is left. Blocks."""
        status = allocation.status
        shutil.rmtree(self.folder(allocation.metadata.namespace, allocation.metadata.name), ignore_errors=True)
        if status.burst is not None:
            with contextlib.suppress(OSError):  # the link may never have been made
                burst = self.burst(status.burst)
                (burst / str(status.task)).unlink()
                if next(burst.glob("[0-9]*"), None) is None:
                    shutil.rmtree(burst)


def last_output(lines: Sequence[str], written_at: float, end: float) -> LastOutput | None:
    """Return the exit reason that our process logged shortly before `end`, or else the last line. Return None if the
    last line is too old, or if Slurm wrote it.

    `written_at`: Unix seconds of the last write to the log. It is used for lines that do not contain a time. Pure.
    """
    written = [line for line in lines if line.strip()]
    for line in reversed(written[-TAIL_LINES:]):
        at, level, message = _parse_log_line(line)
        if at is not None and level == "critical" and end - at < RECENT_SECONDS:
            return LastOutput(message, end - at, is_exit_reason=True)
    # After a line of Slurm, the time of the file is the time of that line. So the age of an earlier line that contains
    # no time is unknown.
    if not written or written[-1].startswith(SLURM_LOG_PREFIXES):
        return None
    at, _, message = _parse_log_line(written[-1])
    before = end - (written_at if at is None else at)
    return LastOutput(message, before) if before < RECENT_SECONDS else None


def _parse_log_line(line: str) -> tuple[float | None, str, str]:
    """Return (Unix seconds, level, message) for a line of our logs, and (None, "", line) for any other line."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        logged = json.loads(line)
        at = datetime.fromisoformat(logged["time"].replace("Z", "+00:00")).timestamp()
        return at, str(logged["level"]), str(logged["message"])
    return None, "", line.strip()


def _launcher(template: AllocationTemplate) -> list[str]:
    """Command that starts a gang: one process on each node. Empty for a single node. If a process fails, srun ends the
    others at once. If a process ends without error, srun ends the others after GANG_WAIT_SECONDS."""
    if template.nodes == 1:
        return []
    # srun does not inherit --cpus-per-task from sbatch (Slurm 22.05, release notes).
    cores = f"--cpus-per-task={template.cpus_per_task}"
    return ["srun", "--kill-on-bad-exit=1", f"--wait={GANG_WAIT_SECONDS}", "--ntasks-per-node=1", cores]
