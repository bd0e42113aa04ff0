"""The driver of a single machine: jobs are process groups here, with Slurm's states, exit codes, signals and time limits.

State lies in a folder a job, so a server that comes back finds its jobs as it would in Slurm. Nothing is signalled unless
pid, start time and boot prove it ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollyard.errors import SubmitRefused
from rollyard.kinds.quantity import walltime_seconds
from rollyard.slurm import local_step
from rollyard.slurm.base import BatchScript, Job, JobState, Snapshot
from rollyard.slurm.process import ProcessProof
from rollyard.slurm.script import JOB_PREFIX

MIN_JOB_AGE_SECONDS = 300.0
START_SECONDS = 30.0
KILL_WAIT_SECONDS = 10.0
NO_LIMIT_SECONDS = 365 * 86400


class LocalDriver:
    """Jobs below `folder`, each in a folder named by its id."""

    name = "local"

    def __init__(
        self, folder: Path, *, kill_wait: float = KILL_WAIT_SECONDS, min_job_age: float = MIN_JOB_AGE_SECONDS
    ) -> None:
        self._jobs = folder / "jobs"
        self._jobs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._kill_wait = kill_wait
        self._min_job_age = min_job_age
        self._ended: dict[str, Job] = {}

    async def snapshot(self) -> Snapshot:
        return await asyncio.to_thread(self._snapshot)

    async def submit(self, script: BatchScript) -> str:
        return await asyncio.to_thread(self._submit, script)

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        await asyncio.to_thread(self._cancel, list(ids), signal)

    async def close(self) -> None:
        pass

    # submit

    def _submit(self, script: BatchScript) -> str:
        options = directives(script.text)
        try:
            limit = walltime_seconds(options["time"]) if "time" in options else NO_LIMIT_SECONDS
        except ValueError as error:
            raise SubmitRefused(f"Invalid --time specification: {error}") from None
        if not Path(script.directory).is_dir():
            raise SubmitRefused(f"Unable to chdir to {script.directory}")
        id, folder = self._new_folder()
        (folder / "script").write_text(script.text)
        job = {
            "id": id,
            "name": script.name,
            "comment": script.comment,
            "directory": script.directory,
            "output": options.get("output", str(Path(script.directory) / f"slurm-{id}.out")),
            "cpus": options.get("cpus-per-task", "1"),
            "node": os.uname().nodename,
            "time_limit": limit,
            "kill_wait": self._kill_wait,
            "submit_time": time.time(),
        }
        local_step.write(folder / "job.json", job)  # from here on the job exists
        command = [sys.executable, "-I", "-S", local_step.__file__, str(folder)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        return id

    def _new_folder(self) -> tuple[str, Path]:
        with (self._jobs.parent / "next-id").open("a+") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.seek(0)
            id = int(counter.read() or 1)
            counter.truncate(0)
            counter.write(str(id + 1))
            counter.flush()
        folder = self._jobs / str(id)
        folder.mkdir(mode=0o700)
        return str(id), folder

    # look

    def _snapshot(self) -> Snapshot:
        taken_at, jobs = time.time(), {}
        for folder in self._jobs.iterdir():
            job = self._ended.get(folder.name) or self._look(folder)
            if job is None:
                continue
            if job.state.ended:
                self._ended[job.id] = job
                if job.end_time is not None and taken_at - job.end_time > self._min_job_age:
                    self._purge(folder)
                    continue
            if job.name.startswith(JOB_PREFIX):
                jobs[job.id] = job
        return Snapshot(taken_at, jobs)

    def _look(self, folder: Path) -> Job | None:
        data = _read(folder / "job.json")
        if data is None:  # a submit that died before the job existed, or is at it right now
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > START_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
            return None
        end, run, step = (_read(folder / f"{name}.json") for name in ("end", "run", "step"))
        if end is None and not _alive(step) and not _alive(run):
            end = _read(folder / "end.json") or self._step_gone(folder, data, started=run is not None)
        start = run["start_time"] if run else None
        if end is not None:
            state, until = JobState(end["state"]), end["end_time"]
        elif run is not None:
            state, until = JobState.RUNNING, start + data["time_limit"]
        else:
            state, until = JobState.PENDING, None
        return Job(
            id=data["id"],
            name=data["name"],
            comment=data["comment"],
            state=state,
            reason="" if run or end else "None",
            node=data["node"] if run else "",
            exit_code=end["exit_code"] if end else None,
            submit_time=data["submit_time"],
            start_time=start,
            end_time=until,
        )

    def _step_gone(self, folder: Path, data: dict[str, Any], *, started: bool) -> dict[str, Any] | None:
        """Nobody is left to write the end: a node that failed, or a job that never started."""
        if not started and time.time() - data["submit_time"] < START_SECONDS:
            return None
        end = {"state": "NODE_FAIL" if started else "FAILED", "exit_code": 1, "end_time": time.time()}
        local_step.write(folder / "end.json", end)
        return end

    def _purge(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._ended.pop(folder.name, None)

    # end

    def _cancel(self, ids: list[str], word: str | None) -> None:
        for id in ids:
            folder = self._jobs / id
            if not id.isdigit() or not folder.is_dir() or (folder / "end.json").exists():
                continue
            step, run = _read(folder / "step.json"), _read(folder / "run.json")
            if word is not None:
                if run:
                    ProcessProof.of(run).kill(signal.Signals[f"SIG{word.removeprefix('SIG')}"], group=True)
                continue
            (folder / "cancelled").touch()
            if step and ProcessProof.of(step).kill(signal.SIGTERM):
                continue
            if run and ProcessProof.of(run).kill(signal.SIGKILL, group=True):  # its step is gone
                local_step.write(folder / "end.json", {"state": "CANCELLED", "exit_code": 137, "end_time": time.time()})


def directives(text: str) -> dict[str, str]:
    """The `#SBATCH --option=value` lines before the first command, as sbatch reads them."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            for word in shlex.split(line.removeprefix("#SBATCH")):
                option, _, value = word.removeprefix("--").partition("=")
                found[option] = value
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return data


def _alive(data: dict[str, Any] | None) -> bool:
    return data is not None and ProcessProof.of(data).alive()
