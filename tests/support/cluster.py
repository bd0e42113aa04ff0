"""Real Slurm clusters for tests, whose daemons a test may stop, kill and start again."""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.slurm.throwaway.cluster import down, up
from deploy.slurm.throwaway.daemons import Daemons
from deploy.slurm.throwaway.machine import missing
from deploy.slurm.throwaway.options import Options
from tests.support.standstill import freeze
from tests.support.until import COSTLY_PAUSE, pauses

ROOT = Path(__file__).resolve().parents[2]
HELD = ("JobHeldUser", "JobHeldAdmin")
"""Reasons of jobs that wait until somebody releases them."""


class Cluster:
    """A running cluster in a folder of its own."""

    def __init__(self, daemons: Daemons, wrapper: tuple[str, ...]) -> None:
        self.daemons = daemons
        self.wrapper = wrapper
        """Prefix of each Slurm command, when Slurm is in a tree of its own."""
        self.folder = daemons.place.folder
        self.env = {"PATH": os.environ["PATH"], **daemons.environment}
        """Environment of a command or server that uses this cluster."""
        self._conf = (self.folder / "slurm.conf").read_text()
        """The settings with which it began."""

    @property
    def pids(self) -> dict[str, int]:
        """Pids of the live daemons: slurmctld, slurmd-n1, slurmd-n2, ..."""
        return {name: d.process.pid for name, d in self.daemons.by_name.items() if d.process is not None and d.alive()}

    # queries

    def run(self, *argv: str, seconds: float = 60.0) -> str:
        """Run a Slurm command and return its output. Raises AssertionError with its error output."""
        done = subprocess.run(
            [shutil.which(argv[0], path=self.env["PATH"]) or argv[0], *argv[1:]],
            env={**os.environ, **self.env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr or done.stdout}"
        return done.stdout.strip()

    def submit(self, command: str, *options: str) -> str:
        """Submit a job that runs this shell command, and return its id; its output is dropped unless an option names a
        file."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}")

    def token(self, seconds: int = 1800) -> str:
        """Return a token for slurmrestd, on a cluster that has it; for our user."""
        return self.run("scontrol", "token", f"lifespan={seconds}").removeprefix("SLURM_JWT=")

    def state(self, job: str) -> str:
        """Return Slurm's name of the job's state; empty once Slurm has forgotten the job."""
        rows = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return dict(row.split() for row in rows).get(job, "")

    def wait_for(self, predicate: Callable[[], Any], seconds: float = 120.0) -> Any:
        """Return the first true answer. Fails with Slurm's state after `seconds`."""
        deadline = time.monotonic() + seconds
        pause = pauses(COSTLY_PAUSE)
        while not (found := predicate()):
            assert time.monotonic() < deadline, f"it did not happen in {seconds:g} s\n{self.run('squeue', '-t', 'all')}"
            time.sleep(next(pause))
        return found

    def wait_for_state(self, job: str, *states: str, seconds: float = 120.0) -> str:
        return str(self.wait_for(lambda: (state := self.state(job)) in states and state, seconds))

    def clear(self) -> None:
        """Cancel the jobs that the last test left, and wait until the nodes are free."""
        self.run("scancel", "-u", getpass.getuser())
        self.wait_for(lambda: not self.run("squeue", "-h"))

    def configure(self, line: str) -> None:
        """Change a line of slurm.conf in the running cluster, such as `MinJobAge=2`."""
        key = line.partition("=")[0] + "="
        kept = [old for old in (self.folder / "slurm.conf").read_text().splitlines() if not old.startswith(key)]
        self._rewrite("\n".join([*kept, line, ""]))

    def _rewrite(self, text: str) -> None:
        conf = self.folder / "slurm.conf"
        new = conf.with_name("slurm.conf.new")  # a command may read the file at any moment
        new.write_text(text)
        new.replace(conf)
        self.run("scontrol", "reconfigure")

    # faults, and their end

    def mend(self) -> None:
        """Take back what a test that failed midway left: frozen and dead daemons, changed settings, nodes that are drained or
        down, suspended and held jobs."""
        for name, daemon in self.daemons.by_name.items():
            if daemon.process is not None and daemon.process.alive():
                daemon.process.send(signal.SIGCONT)
            else:
                self.start_daemon(name)
        conf = self.folder / "slurm.conf"
        if conf.read_text() != self._conf:
            self._rewrite(self._conf)
        rows = self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        for node in sorted({node for node, state in map(str.split, rows) if "drain" in state or "down" in state}):
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        for job, state, reason in (row.split("|") for row in self.run("squeue", "-h", "-o", "%A|%T|%r").splitlines()):
            if state == "SUSPENDED" or reason in HELD:
                self.run("scontrol", "resume" if state == "SUSPENDED" else "release", job)

    def stop_daemon(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal; for one that ends a process, return once it has ended."""
        process = self.daemons.by_name[name].process
        assert process is not None
        process.send(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            self.wait_for(lambda: not process.alive())

    def settle(self) -> None:
        """Wait until slurmctld has saved its state: if it is killed before, it treats a running job as pending.

        It saves up to five seconds after a change, so this makes one: a job whose name the saved file then contains. A
        newer file alone may have been begun before the change.
        """
        written, name = self.folder / "state" / "job_state", f"settle-{time.monotonic_ns()}"
        job = self.submit("true", "--hold", f"--job-name={name}")
        self.wait_for(lambda: written.exists() and name.encode() in written.read_bytes())
        self.run("scancel", job)

    def start_daemon(self, name: str) -> None:
        """Start the daemon again with the same command; slurmctld answers when this returns, a slurmd must still register."""
        self.daemons.start(name)
        if name == "slurmctld":
            self.wait_for(lambda: "UP" in self._ping())

    def _ping(self) -> str:
        done = subprocess.run(["scontrol", "ping"], env={**os.environ, **self.env}, capture_output=True, text=True)
        return done.stdout

    def freeze(self, name: str = "slurmctld") -> None:
        """Stop the daemon's processes: it listens and does not answer."""
        process = self.daemons.by_name[name].process
        assert process is not None
        assert process.alive()
        freeze(process.pid)

    def thaw(self, name: str = "slurmctld") -> None:
        self.stop_daemon(name, signal.SIGCONT)


NewCluster = Callable[..., Cluster]


def start_cluster(*, sid: bool = False, **options: Any) -> Cluster:
    """Start a cluster; with `sid` on Slurm 26.05. Skips with the reason when this machine has no such Slurm."""
    if sid:
        options["wrapper"] = (f"{sid_tree()}/enter",)
    asked = Options(**options)
    if lacking := missing(asked):
        level = " --accounting" if asked.accounting else ""
        pytest.skip(f"Slurm is not all here: no {', '.join(lacking)}; deploy/slurm/install.sh{level} installs it")
    # short, because Slurm's sockets are in it and pytest's folders have long names; a tree must contain it
    parent = asked.prefix / "tmp" if asked.prefix is not None else None
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=parent))
    try:
        daemons, _ = up(folder, asked)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return Cluster(daemons, asked.wrapper)


def sid_tree() -> Path:
    """Return the tree with Slurm 26.05 and pyslurm. Skips with the reason when there is none."""
    made = _make_sid_tree()
    if made.returncode:
        pytest.skip(f"no tree with Slurm 26.05: {(made.stderr.strip().splitlines() or ['it does not say why'])[-1]}")
    return Path(made.stdout.strip())


@functools.cache
def _make_sid_tree() -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "deploy/slurm/sid-tree.sh"], capture_output=True, text=True)


def stop_cluster(cluster: Cluster) -> None:
    for process in cluster.daemons.processes(cluster.daemons.by_name):
        process.send(signal.SIGKILL)  # an end in order takes seconds, and nothing of it is kept
    down(cluster.folder)
    shutil.rmtree(cluster.folder)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """4 nodes of 8 cpus and 4 GPUs, shared by the tests: break nothing, and call `clear()` afterwards."""
    made = start_cluster()
    yield made
    stop_cluster(made)


@pytest.fixture(scope="session")
def accounting_cluster() -> Iterator[Cluster]:
    """The same with slurmdbd: account rl; QOS normal, high (preempts normal) and one (one job a user)."""
    made = start_cluster(accounting=True)
    yield made
    stop_cluster(made)


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """new_cluster(nodes=2, conf=("SlurmdTimeout=5",), ...): a cluster to break; options as of `devcluster up`, and sid."""
    made: list[Cluster] = []

    def start(**options: Any) -> Cluster:
        made.append(start_cluster(**options))
        return made[-1]

    yield start
    for one in made:
        stop_cluster(one)
