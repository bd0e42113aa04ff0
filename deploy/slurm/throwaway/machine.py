"""This machine's prerequisites for a cluster: commands, Slurm's version, ports, names."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from .conf import Here
from .options import ClusterError, Options

SEARCH_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
"""Daemons are in folders that an ordinary user's PATH leaves out."""
STEP_SECONDS = 180.0
"""Limit of each step of a start. All of them together take about one second; a machine whose disk is busy takes longer."""
_PORTS = range(20_000, 31_000)
"""Ports below the range from which the kernel assigns ports itself."""
_PLUGIN_FOLDERS = ("usr/lib/*/slurm-wlm", "usr/lib/*/slurm", "usr/lib64/slurm")


def run(command: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, found by SEARCH_PATH. Raises ClusterError when it cannot start or takes too long."""
    env = {"PATH": SEARCH_PATH, **(env or {})}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=STEP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{' '.join(command)}: {error}") from None


def missing(options: Options) -> list[str]:
    """List missing commands and plugins. The inside of a wrapper's tree cannot be checked."""
    slurm = ["slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo"]
    slurm += ["munged"] if options.auth == "munge" else []
    slurm += ["slurmdbd", "sacctmgr", "sacct"] if options.accounting else []
    slurm += ["slurmrestd"] if options.rest else []
    plugins = ["accounting_storage_mysql.so"] if options.accounting else []
    plugins += ["auth_jwt.so"] if options.rest else []
    database = ["mariadbd", "mariadb-install-db"] if options.accounting else []
    if options.wrapper:
        slurm, plugins = [], []
    tree = options.prefix or Path("/")
    path = ":".join(str(tree / folder.lstrip("/")) for folder in SEARCH_PATH.split(":"))
    lacking = [name for name in slurm if shutil.which(name, path=path) is None]
    lacking += [name for name in database if shutil.which(name, path=SEARCH_PATH) is None]
    return lacking + [name for name in plugins if _lacks_plugin(tree, name)]


def _lacks_plugin(tree: Path, name: str) -> bool:
    """Return False when the folder of Slurm's plugins is unknown: Slurm then reports the error itself."""
    folders = [folder for pattern in _PLUGIN_FOLDERS for folder in tree.glob(pattern)]
    return bool(folders) and not any((folder / name).exists() for folder in folders)


def look_around(options: Options, ports: range) -> Here:
    """Collect the facts. `ports`: as many as `reserved_ports` gives. Raises ClusterError when something is missing."""
    if lacking := missing(options):
        raise ClusterError(f"not installed: {', '.join(lacking)}; deploy/slurm/install.sh installs it")
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise ClusterError(f"uid {os.getuid()} has no name in /etc/passwd, and Slurm wants one") from None
    host = socket.gethostname().partition(".")[0]
    address = _address(host, options)
    closed = address.startswith("127.")
    if options.auth == "none" and not closed:
        raise ClusterError(
            f"{host} is not a name of the loopback interface: all the network could use it; take --auth munge"
        )
    return Here(
        host=host,
        address=address if closed else "127.0.0.1",
        closed=closed,
        user=user,
        version=_version(options),
        controller_port=ports[0],
        database_port=ports[1],
        rest_port=ports[2],
        node_ports=ports[3:],
    )


def _address(host: str, options: Options) -> str:
    """Resolve the host's name as Slurm does, perhaps in another tree; empty when it is unknown."""
    return run(options.command("getent", "ahostsv4", host)).stdout.partition(" ")[0]


def _version(options: Options) -> tuple[int, int]:
    command = options.command("slurmctld", "-V")
    answer = run(command)
    found = re.search(r"(\d+)\.(\d+)", answer.stdout)
    if found is None:
        raise ClusterError(f"{' '.join(command)} tells no version: {answer.stdout}{answer.stderr}")
    return int(found[1]), int(found[2])


@contextlib.contextmanager
def reserved_ports(options: Options) -> Iterator[range]:
    """Yield consecutive free ports of the loopback interface for a cluster.

    While it starts, no other cluster that starts gets one of them: each port is marked by an abstract Unix socket, which
    also goes when this process is killed.
    """
    count = options.nodes + 3
    for _ in range(100):
        first = random.randrange(_PORTS.start, _PORTS.stop - count)
        ports = range(first, first + count)
        with contextlib.ExitStack() as marks:
            try:
                for port in ports:
                    mark = marks.enter_context(socket.socket(socket.AF_UNIX))
                    mark.bind(f"\0throwaway-slurm-{port}")
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield ports
            return
    raise ClusterError(f"no {count} free ports in a row between {_PORTS.start} and {_PORTS.stop}")
