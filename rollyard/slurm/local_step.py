"""Step of a local job: a process that runs one job and records how the job ended, like Slurm's slurmstepd.

The driver starts the step as `python -I -S local_step.py JOB_FOLDER`. The step imports only the standard library and
one module of ours that does so too, so the process is small. The step adopts the job's orphans
(PR_SET_CHILD_SUBREAPER), so every process of the job stays below the step in the process tree. The step records the end
after all of these processes have ended.

Files in the folder, each complete or absent:
- `step.json`: identity of the step. If the driver has created this file first, without an identity, the step exits and
  the job never starts.
- `run.json`: identity of the leader, which is the job's first process.
- `end.json`: how the job ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # with -I, Python does not look for our packages
    sys.path.append(str(Path(__file__).resolve().parents[2]))
from rollyard.core.process_tree import adopt_orphans, boot_id, descendants, reap, signal_all, stat

WATCHED = {signal.SIGCHLD, signal.SIGTERM}
COOKIE = "ROLLYARD_LOCAL_JOB"
"""Environment variable by which the driver finds the job's processes if the step has died."""
END_REASONS = {"FAILED": "NonZeroExitCode", "TIMEOUT": "TimeLimit", "NODE_FAIL": "NodeDown"}
POLL_SECONDS = 1.0
ENDING_POLL_SECONDS = 0.1


def main(folder: Path) -> None:
    if os.fork():
        os._exit(0)  # the driver waits only for the first process; its child, the step, becomes a child of init
    os.setsid()
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # otherwise the jobs of a server under nohup would ignore SIGHUP too
    # As soon as step.json exists, a SIGTERM may come. The signal must stay pending until `watch` handles it, so it is
    # blocked before the file is written.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    adopt_orphans()
    if not write_once(folder / "step.json", process_identity(os.getpid())):
        return  # too late: the driver has already recorded that the job never started
    job = json.loads((folder / "job.json").read_text())
    try:
        end_now(folder, *run(folder, job))
    except (OSError, subprocess.SubprocessError) as error:
        with contextlib.suppress(OSError), open(job["output"], "a") as output:
            output.write(f"error: the job could not be started: {error}\n")
        end_now(folder, "FAILED", 1, "JobLaunchFailure")


def end_now(folder: Path, state: str, code: int, reason: str | None = None) -> None:
    while left := descendants(os.getpid()):
        signal_all(left, signal.SIGKILL)
        signal.sigtimedwait(WATCHED, ENDING_POLL_SECONDS)
        reap()
    write(folder / "end.json", end_record(state, code, reason))


def run(folder: Path, job: dict[str, Any]) -> tuple[str, int]:
    # A cancel first makes `cancelled` and then reads step.json. The step first writes step.json and then looks for
    # `cancelled`. So at least one of the two sees the file of the other.
    if (folder / "cancelled").exists():
        return "CANCELLED", 0
    started, limit = time.time(), job["time_limit"]
    environment = {
        **os.environ,
        "SLURM_JOB_ID": job["id"],
        "SLURM_JOB_NAME": job["name"],
        "SLURM_RESTART_COUNT": "0",
        "SLURM_CPUS_PER_TASK": job["cpus"],
        "SLURM_SUBMIT_DIR": job["directory"],
        "SLURMD_NODENAME": job["node"],
        "SLURM_JOB_NODELIST": job["node"],
        "SLURM_JOB_START_TIME": str(int(started)),
        "SLURM_JOB_END_TIME": str(int(started + limit)),
    }
    array, _, task = job["id"].partition("_")
    if task:
        environment |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task}

    def before_exec() -> None:
        # The leader writes run.json itself. So no kill can leave a leader that runs without a run.json.
        write(folder / "run.json", {**process_identity(os.getpid()), "start_time": started})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    with open(job["output"], "ab", buffering=0) as output:
        leader = subprocess.Popen(
            ["/bin/bash", str(folder / "script")],
            cwd=job["directory"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=before_exec,
        )
    return watch(leader.pid, limit, job["kill_wait"])


def watch(leader: int, limit: float, kill_wait: float) -> tuple[str, int]:
    """Wait until the leader has ended; return the job's state and exit code.

    A SIGTERM to this process cancels the job. In this case, and at the time limit, the leader gets TERM. As in Slurm
    (cgroup.conf, SignalChildrenProcesses=no) the leader's children get no TERM, so that the leader can end them in its
    own order. After `kill_wait` seconds all processes of the job get KILL.
    """
    deadline, kill_at = time.monotonic() + limit, math.inf
    ending, cancelled = None, False
    while True:
        code, now = exit_code(reap().get(leader)), time.monotonic()
        if code is not None:
            return ending or ("COMPLETED" if code == 0 else "FAILED"), code
        if ending is None and (cancelled or now >= deadline):
            ending, kill_at = "CANCELLED" if cancelled else "TIMEOUT", now + kill_wait
            signal_all([leader], signal.SIGTERM, signal.SIGCONT)
        if now >= kill_at:
            signal_all(descendants(os.getpid()), signal.SIGKILL)
        pause = min(POLL_SECONDS, max(0.0, deadline - now)) if ending is None else ENDING_POLL_SECONDS
        got = signal.sigtimedwait(WATCHED, pause)
        cancelled = cancelled or (got is not None and got.si_signo == signal.SIGTERM)


def exit_code(status: int | None) -> int | None:
    """Return the exit code of a wait status (128 + n for signal n); None for None."""
    if status is None:
        return None
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def process_identity(pid: int) -> dict[str, Any]:
    return {"pid": pid, "start": int(stat(pid)[19]), "boot": boot_id()}


def end_record(state: str, code: int, reason: str | None = None) -> dict[str, Any]:
    """Return the content of `end.json`."""
    why = END_REASONS.get(state, "") if reason is None else reason
    return {"state": state, "exit_code": code, "reason": why, "end_time": time.time()}


def write(path: Path, data: dict[str, Any]) -> None:
    """Replace a file atomically: a reader sees the whole old content or the whole new content."""
    _partial(path, data).rename(path)


def write_once(path: Path, data: dict[str, Any]) -> bool:
    """Create a file atomically; return False if the file exists already."""
    partial = _partial(path, data)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def _partial(path: Path, data: dict[str, Any]) -> Path:
    # Each writer uses another name, because server and step may write the same file at the same time.
    partial = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    with partial.open("w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    return partial


if __name__ == "__main__":
    main(Path(sys.argv[1]))
