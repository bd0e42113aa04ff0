"""MariaDB, slurmdbd and their entries: one account, and QOS that preempt and that limit."""

from __future__ import annotations

import socket

from .conf import CLUSTER, Here
from .daemons import Daemons
from .machine import run
from .options import ClusterError, Options, Place

ACCOUNT = "rl"


def install_database(place: Place) -> None:
    """Create MariaDB's own tables. Its root has no password: the folder of its socket is closed to others."""
    command = ["mariadb-install-db", f"--defaults-file={place.folder}/db/my.cnf"]
    command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
    done = run(command)
    if done.returncode:
        raise ClusterError(f"mariadb-install-db failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def start_database(daemons: Daemons) -> None:
    db = daemons.place.folder / "db"
    daemons.add("mariadbd", ["mariadbd", f"--defaults-file={db}/my.cnf", f"--init-file={db}/init.sql"])


def start_slurmdbd(daemons: Daemons, options: Options) -> None:
    # slurmdbd.conf cannot name a socket; the client library takes it from here
    more = {"MYSQL_UNIX_PORT": f"{daemons.place.inside}/db/mysql.sock"}
    daemons.add("slurmdbd", options.command("slurmdbd", "-D"), more)


def database_answers(place: Place) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(f"{place.folder}/db/mysql.sock") == 0


def enter_accounts(place: Place, options: Options, here: Here) -> None:
    """Enter the accounts before slurmctld starts, so that it finds its cluster; `sacctmgr` can add to them at any time."""
    for words in (
        f"cluster {CLUSTER}",
        f"account {ACCOUNT} Cluster={CLUSTER} Description=throwaway Organization=throwaway",
        "qos high Preempt=normal Priority=100",
        "qos one MaxJobsPerUser=1",
        f"user {here.user} Account={ACCOUNT} DefaultAccount={ACCOUNT} QOS=normal,high,one DefaultQOS=normal",
    ):
        command = options.command("sacctmgr", "-i", "add", *words.split())
        done = run(command, {"SLURM_CONF": str(place.conf)})
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
