"""Starts and stops a cluster: every daemon is recorded before the next one starts, and recorded daemons are ended."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from . import accounting, rest
from .conf import Here
from .daemons import Daemons
from .folder import lay_out
from .machine import STEP_SECONDS, look_around, reserved_ports, run
from .options import ClusterError, Options, Place
from .process import Process, ancestors, end, every_process, identities, with_descendants

DAEMON_SECONDS, JOB_SECONDS = 2.0, 3.0
"""Time that daemons and jobs have to end by themselves when their cluster goes down."""
POLL_SECONDS = 0.02


def up(folder: Path, options: Options) -> tuple[Daemons, bool]:
    """Return the cluster in the folder, and whether this call started it: False when it was up before.

    Raises ClusterError with the last output of the daemon that failed; no process is left running then.
    """
    folder = folder.absolute()
    if known := _still_up(folder):
        return known, False
    folder.mkdir(parents=True, exist_ok=True)
    place = Place.of(folder, options)
    with reserved_ports(options) as ports:
        here = look_around(options, ports)
        lay_out(place, options, here)
        daemons = Daemons(place, _client_environment(place, options, here))
        daemons.save()
        try:
            _bring_up(daemons, options, here)
        except BaseException:
            down(folder)
            raise
    return daemons, True


def down(folder: Path) -> None:
    """End every daemon and every job of the cluster; its folder stays, with the logs.

    Raises ClusterError when no cluster was ever up in the folder.
    """
    daemons = Daemons.load(folder.absolute())
    if daemons is None:
        raise ClusterError(f"no cluster was brought up in {folder}")
    storage = ("slurmdbd", "mariadbd", "munged")  # the others talk to these while they end
    end(daemons.processes(name for name in daemons.by_name if name not in storage), DAEMON_SECONDS)
    _end_jobs(daemons)
    for name in storage:
        end(daemons.processes([name]), DAEMON_SECONDS)
    daemons.by_name.clear()
    daemons.save()


def _still_up(folder: Path) -> Daemons | None:
    daemons = Daemons.load(folder)
    dead = daemons.dead() if daemons else []
    if daemons is None or len(dead) == len(daemons.by_name):
        return None
    if dead:
        raise ClusterError(f"{folder} is up but for {', '.join(dead)}: `devcluster down {folder}` first")
    return daemons


def _client_environment(place: Place, options: Options, here: Here) -> dict[str, str]:
    """Return the environment variables that a shell needs to use the cluster."""
    env = {"SLURM_CONF": str(place.conf)}
    if options.command():
        env["PATH"] = f"{place.folder}/bin:{os.environ.get('PATH', os.defpath)}"
    if options.rest:
        env |= rest.client_environment(place, here)
    return env


def _bring_up(daemons: Daemons, options: Options, here: Here) -> None:
    place = daemons.place
    if options.auth == "munge":
        _start_munge(daemons, options)
        _until(daemons, "munged's socket", (place.folder / "run/munge.sock").exists)
    if options.accounting:
        accounting.install_database(place)
        accounting.start_database(daemons)
        _until(daemons, "MariaDB", lambda: accounting.database_answers(place))
        accounting.start_slurmdbd(daemons, options)
        _until(daemons, "slurmdbd", lambda: _listens(here.database_port))
        accounting.enter_accounts(place, options, here)
    daemons.add("slurmctld", options.command("slurmctld", "-D", "-f", str(place.conf)))
    _until(daemons, "slurmctld", lambda: _listens(here.controller_port, here.address))
    for index in range(1, options.nodes + 1):
        daemons.add(f"slurmd-n{index}", options.command("slurmd", "-D", "-N", f"n{index}", "-f", str(place.conf)))
    _until(daemons, "the nodes", lambda: _registered(place, options) == options.nodes)
    if options.rest:
        rest.start_rest(daemons, options, here)
        _until(daemons, "slurmrestd", lambda: rest.answers(place) and _listens(here.rest_port))
    daemons.remember_root()


def _start_munge(daemons: Daemons, options: Options) -> None:
    inside = daemons.place.inside
    files = {
        "key-file": "munge.key",
        "socket": "run/munge.sock",
        "pid-file": "run/munged.pid",
        "log-file": "log/munged.log",
        "seed-file": "run/munged.seed",
    }
    words = [f"--{option}={inside}/{name}" for option, name in files.items()]
    # --force: munged otherwise requires a folder of root's
    daemons.add("munged", options.command("munged", "--foreground", "--force", "--num-threads=2", *words))


def _until(daemons: Daemons, what: str, condition: Callable[[], bool]) -> None:
    """Wait for the condition. Raises ClusterError when a daemon ends, or after the limit."""
    deadline = time.monotonic() + STEP_SECONDS
    while not condition():
        for name in daemons.dead():
            raise ClusterError(f"{name} ended by itself:\n{daemons.last_output(name)}")
        if time.monotonic() > deadline:
            words = "\n".join(f"{name}:\n{daemons.last_output(name)}" for name in daemons.by_name)
            raise ClusterError(f"waited {STEP_SECONDS:g} s for {what} in vain\n{words}")
        time.sleep(POLL_SECONDS)


def _listens(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def _registered(place: Place, options: Options) -> int:
    """Count the nodes that slurmctld has heard of: an asterisk marks those that have not answered yet."""
    command = options.command("sinfo", "-h", "-N", "-o", "%N %T")
    answer = run(command, {"SLURM_CONF": str(place.conf)})
    nodes = {line for line in answer.stdout.splitlines() if not line.endswith("*") and "unknown" not in line}
    return len(nodes) if answer.returncode == 0 else 0


def _end_jobs(daemons: Daemons) -> None:
    """End the jobs' processes, then their slurmstepds, once no slurmd is left to start one."""
    found = _job_processes(daemons)
    keepers = {process for process in found if process.name() == "slurmstepd"}
    end(found - keepers, JOB_SECONDS)
    end(_job_processes(daemons), 0.0)  # otherwise a slurmstepd reports to the dead slurmctld for ever


def _job_processes(daemons: Daemons) -> set[Process]:
    """Find all processes that carry this cluster's name and a job's, or write its logs, and their descendants.

    A slurmstepd has overwritten its environment with its title, hence the logs. The shell that runs `down` may be
    inside a job: it and its ancestors are left out.
    """
    parents = every_process()
    logs = identities((daemons.place.folder / "log").iterdir())
    conf = str(daemons.place.conf)
    marked = set()
    for process in parents:
        env = process.environ()
        in_job = env.get("SLURM_CONF") == conf and "SLURM_JOB_ID" in env and process.root() == daemons.root
        if in_job or (process.name().startswith("slurm") and process.holds_open(logs)):
            marked.add(process)
    spared = ancestors(os.getpid())
    return {process for process in with_descendants(marked, parents) if process.pid not in spared}
