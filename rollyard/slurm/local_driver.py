"""Driver for a single machine. A job is a process tree with Slurm's states, exit codes, signals and time limits.

The state of each job is in a folder, so a restarted server finds its jobs. Cores and memory are not allocated to jobs: a
submitted job starts immediately. The driver checks the identity of a process before it sends a signal
(`process_identity.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.core.errors import SlurmError, SubmitRefused
from rollyard.kinds.values.quantity import walltime_seconds
from rollyard.slurm.base import BatchScript, Job, JobAccount, JobListing, Node, Site
from rollyard.slurm.batch_script import JOB_PREFIX, directives
from rollyard.slurm.local_job import START_SECONDS, LocalJob

MIN_JOB_AGE_SECONDS = 300.0
KILL_WAIT_SECONDS = 10.0
NO_LIMIT_SECONDS = 365 * 86400
_ID = re.compile(r"\d+(_\d+)?")


class LocalDriver:
    """Jobs below `folder`: one folder for each job, named by the job's id. Several processes may share `folder`."""

    name = "local"

    def __init__(
        self, folder: Path, *, kill_wait: float = KILL_WAIT_SECONDS, min_job_age: float = MIN_JOB_AGE_SECONDS
    ) -> None:
        """`kill_wait`: seconds from TERM to KILL. `min_job_age`: seconds for which an ended job is still shown."""
        self._folder = folder.resolve()
        self._jobs = self._folder / "jobs"
        self._jobs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._kill_wait = kill_wait
        self._min_job_age = min_job_age
        self._ended: dict[str, Job] = {}

    async def list_jobs(self) -> JobListing:
        return await asyncio.to_thread(self._list_jobs)

    async def submit(self, script: BatchScript) -> list[str]:
        return await asyncio.to_thread(self._submit, script)

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        await asyncio.to_thread(self._cancel, list(ids), signal)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        return {}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        return None

    async def site(self) -> Site:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        node = Node(os.uname().nodename, "idle", cpus=os.cpu_count() or 1, memory_bytes=memory)
        return Site("local", {}, {node.name: node})

    async def close(self) -> None:
        pass

    def _submit(self, script: BatchScript) -> list[str]:
        if script.within is not None:
            raise SubmitRefused(
                f"job {script.within}: steps of a job need Slurm; leave out spec.allocation.within on this machine"
            )
        options = directives(script.text)
        limit = _time_limit(options.get("time", "0"))
        tasks = _tasks(options.get("array"))
        if options.get("nodes", "1") != "1":
            raise SubmitRefused(f"Requested node configuration is not available: {options['nodes']} nodes on 1 machine")
        if not Path(script.directory).is_dir():
            raise SubmitRefused(f"Unable to chdir to {script.directory}")
        node = os.uname().nodename
        try:
            folders = self._new_folders(tasks)
            for folder in folders:
                array, _, task = folder.name.partition("_")
                names = {"j": folder.name, "A": array, "a": task, "x": script.name, "N": node}
                LocalJob(folder).create(
                    script.text,
                    name=script.name,
                    comment=script.comment,
                    directory=script.directory,
                    output=os.path.join(script.directory, _expand(options.get("output", "slurm-%j.out"), names)),
                    cpus=options.get("cpus-per-task", "1"),
                    node=node,
                    time_limit=limit,
                    kill_wait=self._kill_wait,
                )
        except OSError as error:
            raise SubmitRefused(f"Unable to record the job: {error}") from None
        for folder in folders:
            LocalJob(folder).start()
        return [folder.name for folder in folders]

    def _new_folders(self, tasks: int | None) -> list[Path]:
        """Make the folder of a new job. For an array of `tasks` tasks, make one folder for each task.

        The counter of ids is written in place with one short write, so a kill cannot leave a part of a number.
        """
        counter = os.open(self._folder / "next-id", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(counter, fcntl.LOCK_EX)
            id = int(os.pread(counter, 20, 0) or b"1")
            # After a power cut the counter may be lower than the id of an existing job.
            while (self._jobs / str(id)).exists() or (self._jobs / f"{id}_0").exists():
                id += 1
            os.pwrite(counter, str(id + 1).encode(), 0)
            os.fsync(counter)
            names = [str(id)] if tasks is None else [f"{id}_{task}" for task in range(tasks)]
            for name in names:
                (self._jobs / name).mkdir(mode=0o700)
            return [self._jobs / name for name in names]
        finally:
            os.close(counter)

    def _list_jobs(self) -> JobListing:
        taken_at, jobs, ended = time.time(), {}, {}
        for folder in (folder for folder in self._jobs.iterdir() if _ID.fullmatch(folder.name)):
            job = self._ended.get(folder.name) or self._observe(folder)
            if job is None:
                continue
            if job.state.ended:
                if job.end_time is not None and taken_at - job.end_time > self._min_job_age:
                    self._purge(folder)
                    continue
                ended[job.id] = job
            if job.name.startswith(JOB_PREFIX):
                jobs[job.id] = job
        self._ended = ended
        return JobListing(taken_at, jobs)

    def _observe(self, folder: Path) -> Job | None:
        with contextlib.suppress(FileNotFoundError):  # another driver is removing the folder
            job = LocalJob(folder).observe()
            if job is not None:
                return job
            if time.time() - folder.stat().st_mtime > START_SECONDS:  # the submit was killed midway
                self._purge(folder)
        return None

    def _purge(self, folder: Path) -> None:
        """Remove a job. A rename comes first, so that no reader sees a job with only some of its files."""
        trash = self._folder / "trash"
        trash.mkdir(exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(trash / folder.name)
        shutil.rmtree(trash, ignore_errors=True)

    def _cancel(self, ids: list[str], word: str | None) -> None:
        number = None if word is None else _signal_number(word)
        for id in ids:
            job = LocalJob(self._jobs / id)
            if not _ID.fullmatch(id) or not job.folder.is_dir() or job.ended:
                continue
            with contextlib.suppress(FileNotFoundError):  # another driver has just removed the folder
                if number is None:
                    job.cancel()
                else:
                    job.send(number)


def _tasks(array: str | None) -> int | None:
    if array is None:
        return None
    if found := re.fullmatch(r"0-(\d+)", array):
        return int(found[1]) + 1
    raise SubmitRefused(f"Invalid job array specification: {array}; write 0-N")


def _time_limit(text: str) -> int:
    try:
        return walltime_seconds(text) or NO_LIMIT_SECONDS
    except ValueError as error:
        raise SubmitRefused(f"Invalid --time specification: {error}") from None


def _expand(pattern: str, values: dict[str, str]) -> str:
    """Replace the codes of sbatch's filename patterns, such as `%j`. `%%` is a percent sign."""
    return re.sub("%(.)", lambda match: {**values, "%": "%"}.get(match[1], match[0]), pattern)


def _signal_number(word: str) -> int:
    try:
        return signal.Signals[f"SIG{word.removeprefix('SIG')}"]
    except KeyError:
        raise SlurmError(f"Unknown job signal: {word}; write a name such as USR1") from None
