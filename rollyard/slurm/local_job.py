"""One job of the local driver, as files in its folder.

The job's step (`local_step`) is the process that runs the job and records how the job ended. If the step has died,
`observe` records the end. A server or step that is killed at any line leaves files from which the next `observe`
continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.kinds.values.job_state import JobState
from rollyard.slurm import local_step
from rollyard.slurm.base import Job
from rollyard.slurm.process_identity import ProcessIdentity, processes_with_variable

START_SECONDS = 30.0
"""Seconds in which a step must write `step.json`. If the file is missing after that time, the job never starts."""
KILLED = 128 + signal.SIGKILL
NO_STEP = {"pid": 0, "start": 0, "boot": ""}
"""Content of `step.json` if no step may start the job any more."""


@dataclass(frozen=True, slots=True)
class LocalJob:
    folder: Path

    def create(self, script: str, **facts: Any) -> None:
        """Record the submitted job. Raises OSError. The job exists when this method has returned."""
        (self.folder / "script").write_text(script)
        data = {"id": self.folder.name, "cookie": secrets.token_hex(16), "submit_time": time.time(), **facts}
        local_step.write(self.folder / "job.json", data)

    def start(self) -> None:
        """Start the job's step, a process that outlives the server. Blocks, usually for milliseconds, at most for
        START_SECONDS."""
        data = self._read("job")
        assert data is not None
        command = [sys.executable, "-I", "-S", local_step.__file__, str(self.folder)]
        # If the server runs in a Slurm job, the local jobs must not get the variables of that Slurm job.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SLURMD_"))}
        environment[local_step.COOKIE] = data["cookie"]
        try:
            with (self.folder / "step.log").open("ab") as log:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    timeout=START_SECONDS,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError):
            self._never_starts()

    def observe(self) -> Job | None:
        """Return the present state of the job; None if the job does not exist.

        If the job's step has died, this method does the work of the step: it kills the job's processes if the first
        process has ended, or if `kill_wait` seconds have passed since a cancel or the time limit. When all processes
        of the job have ended, it records the end of the job.
        """
        data = self._read("job")
        if data is None:
            return None
        end, run = self._read("end"), self._read("run")
        if end is None:
            end = self._observe_without_step(data)
            run = self._read("run")
        start = run["start_time"] if run else None
        if end is not None:
            state, reason, until = JobState(end["state"]), end["reason"], end["end_time"]
        elif start is not None:
            state, reason, until = JobState.RUNNING, "", start + data["time_limit"]
        else:
            state, reason, until = JobState.PENDING, "None", None
        return Job(
            id=data["id"],
            name=data["name"],
            comment=data["comment"],
            state=state,
            reason=reason,
            node=data["node"] if run else "",
            exit_code=end["exit_code"] if end else None,
            submit_time=data["submit_time"],
            start_time=start,
            end_time=until,
        )

    def cancel(self) -> None:
        """Request the job's end. A living step then ends the job. Without a living step, this method sends TERM to the
        job's first process, and later calls of `observe` end the job."""
        # The file is made before step.json is read; local_step.run explains why. An existing file is kept, because its
        # age shows when KILL is due.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.folder / "cancelled", os.O_CREAT | os.O_EXCL, 0o600))
        step, run = self._read("step"), self._read("run")
        if step is not None and ProcessIdentity.of(step).kill(signal.SIGTERM):
            return
        if run is not None:
            ProcessIdentity.of(run).kill(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send a signal to the job's first process, as Slurm does."""
        run = self._read("run")
        if run is not None and not self.ended:
            ProcessIdentity.of(run).kill(number)

    @property
    def ended(self) -> bool:
        return (self.folder / "end.json").exists()

    def _observe_without_step(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return the end record of a job that has no `end.json`; None while the job is pending or runs."""
        step = self._read("step")
        if step is None:
            late = time.time() - data["submit_time"] > START_SECONDS
            return self._never_starts() if late else None
        if ProcessIdentity.of(step).alive():
            return None
        run = self._read("run")
        leader = ProcessIdentity.of(run) if run is not None else None
        why, overdue = self._must_end(data, run)
        if leader is not None and leader.alive() and not overdue:
            return None
        left = {
            *processes_with_variable(local_step.COOKIE, data["cookie"]),
            *([leader] if leader and leader.alive() else []),
        }
        for process in left:
            process.kill(signal.SIGKILL)
        if left:
            return None
        return self._read("end") or self._end_unseen(why, ran=run is not None)

    def _must_end(self, data: dict[str, Any], run: dict[str, Any] | None) -> tuple[str | None, bool]:
        """Return why a job without a step must end (CANCELLED, TIMEOUT or None), and whether KILL is due."""
        now, wait = time.time(), data["kill_wait"]
        with contextlib.suppress(FileNotFoundError):
            return "CANCELLED", now - (self.folder / "cancelled").stat().st_mtime > wait
        over = now - run["start_time"] - data["time_limit"] if run is not None else -1.0
        return "TIMEOUT" if over > 0 else None, over > wait

    def _never_starts(self) -> dict[str, Any] | None:
        if not local_step.write_once(self.folder / "step.json", NO_STEP):
            return None  # a step has written the file in the meantime
        return self._end_unseen(None, ran=False)

    def _end_unseen(self, why: str | None, *, ran: bool) -> dict[str, Any]:
        """Record and return the end of a job whose exit code is unknown."""
        if why is not None:
            end = local_step.end_record(why, KILLED if ran else 0)
        elif ran:
            end = local_step.end_record("NODE_FAIL", 1)
        else:
            end = local_step.end_record("FAILED", 1, "JobLaunchFailure")
        local_step.write(self.folder / "end.json", end)
        return end

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return data
