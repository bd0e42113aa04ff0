"""What slurmstepd is to Slurm, for the local driver: runs one job and writes down how it ended.

Started as `python -I -S local_step.py JOB_FOLDER`, with the standard library alone, so that it is small and outlives the
server. It leads no process group of the job's, takes in the job's orphans (PR_SET_CHILD_SUBREAPER), and at the job's end
ends whatever is left of them. Files in the folder, each replaced atomically: `step.json` (this process), `run.json` (the
job's process), `end.json` (the end state).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def main(folder: Path) -> None:
    if os.fork():
        os._exit(0)  # the driver waits for this one only; the step belongs to init
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    write(folder / "step.json", proof(os.getpid()))
    job = json.loads((folder / "job.json").read_text())
    try:
        state, code = run(folder, job)
    except OSError as error:
        with contextlib.suppress(OSError), open(job["output"], "a") as output:
            output.write(f"the job could not be started: {error}\n")
        state, code = "FAILED", 1
    end_orphans()
    write(folder / "end.json", {"state": state, "exit_code": code, "end_time": time.time()})


def run(folder: Path, job: dict[str, Any]) -> tuple[str, int]:
    if (folder / "cancelled").exists():
        return "CANCELLED", 0
    started = time.time()
    limit = job["time_limit"]
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
    with open(job["output"], "ab", buffering=0) as output:
        child = subprocess.Popen(
            ["/bin/bash", str(folder / "script")],
            cwd=job["directory"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED),
        )
    write(folder / "run.json", {**proof(child.pid), "start_time": started})
    return watch(child.pid, started + limit, job["kill_wait"])


def watch(pid: int, deadline: float, kill_wait: float) -> tuple[str, int]:
    """Until the job's own process has ended: by itself, cancelled (SIGTERM to us), or at its time limit."""
    ending, kill_at = None, None
    while True:
        code = reap(pid)
        if code is not None:
            return (ending or ("COMPLETED" if code == 0 else "FAILED"), code)
        now = time.time()
        if ending is None and now >= deadline:
            ending, kill_at = "TIMEOUT", now + kill_wait
            signal_group(pid, signal.SIGTERM)
        if kill_at is not None and now >= kill_at:
            signal_group(pid, signal.SIGKILL)
            kill_at = now + 1
        pause = min(1.0, max(0.01, min(t for t in (deadline if ending is None else None, kill_at, now + 1) if t) - now))
        got = signal.sigtimedwait(WATCHED, pause)
        if got is not None and got.si_signo == signal.SIGTERM and ending is None:
            ending, kill_at = "CANCELLED", time.time() + kill_wait
            signal_group(pid, signal.SIGTERM)


def reap(pid: int) -> int | None:
    """Collect every child that has ended; the exit code of the job's own, 128 + n for signal n."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                found = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return found


def end_orphans() -> None:
    """Whatever the job left behind is our child now."""
    own = str(os.getpid())
    while True:
        left = [p for p in Path("/proc").iterdir() if p.name.isdigit() and parent(p) == own]
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def parent(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    return ""


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def proof(pid: int) -> dict[str, Any]:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start": int(stat[19]), "boot": boot}


def write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
