"""The text of slurm.conf and related files. Pure: the only place that turns options into Slurm's settings."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options, Place

CLUSTER = "throwaway"
KILL_WAIT_SECONDS = 2
_DISABLED_CGROUPS = (24, 5)
"""The first Slurm in which cgroups can be disabled; since 24.11 its slurmd otherwise asks systemd for them."""
_NO_CREDENTIAL_TYPE = (24, 11)
"""First version in which the credential's plugin follows from AuthType, and the line is an error."""


@dataclass(frozen=True)
class Here:
    """Facts about this machine that the files need."""

    host: str
    address: str
    """Address of the loopback interface; the one of the host's name, if that is a loopback address."""
    closed: bool
    """Whether it is one: then the daemons listen only on the address of the host's name, else everywhere."""
    user: str
    version: tuple[int, int]
    """Slurm's version, such as (22, 5)."""
    controller_port: int
    node_ports: range
    database_port: int
    rest_port: int


def slurm_conf(place: Place, options: Options, here: Here) -> str:
    lines = [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={here.host}({here.address})",
        f"SlurmctldPort={here.controller_port}",
        *(["CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"] if here.closed else []),
        f"SlurmUser={here.user}",
        f"SlurmdUser={here.user}",
        *_authentication(place, options, here.version),
        *_folders(place),
        *_behaviour(),
        *(_accounting(place, options, here) if options.accounting else _no_accounting()),
        *_nodes(options, here),
    ]
    return "".join(f"{line}\n" for line in _replaced(lines, options.conf))


def _authentication(place: Place, options: Options, version: tuple[int, int]) -> list[str]:
    lines = [f"AuthType=auth/{options.auth}"]
    if options.auth == "munge":
        lines.append(f"AuthInfo=socket={place.inside}/run/munge.sock")
    elif version < _NO_CREDENTIAL_TYPE:
        lines.append("CredType=cred/none")
    if options.rest:
        lines += ["AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={place.inside}/jwt.key"]
    return lines


def _folders(place: Place) -> list[str]:
    return [
        f"StateSaveLocation={place.inside}/state",
        f"SlurmdSpoolDir={place.inside}/spool/%n",
        f"SlurmctldPidFile={place.inside}/run/slurmctld.pid",
        f"SlurmdPidFile={place.inside}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={place.inside}/log/slurmctld.log",
        f"SlurmdLogFile={place.inside}/log/slurmd-%n.log",
    ]


def _behaviour() -> list[str]:
    """Settings that are quick where a site is patient, and that need neither root nor cgroups."""
    scheduler = [
        "batch_sched_delay=0",  # starts jobs at once
        "sched_interval=1",
        "sched_min_interval=0",
        "bf_interval=1",
        "bf_resolution=60",
        "bf_window=1440",
        "bf_max_job_test=1000",
        "default_queue_depth=1000",
    ]
    return [
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SwitchType=switch/none",
        "MailProg=/bin/true",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=100",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={','.join(scheduler)}",
        "SlurmdParameters=config_overrides",  # nodes have the resources given here, not this machine's
        "ReturnToService=2",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=10",
        "InactiveLimit=0",
        "MinJobAge=1800",
        f"KillWait={KILL_WAIT_SECONDS}",
        "OverTimeLimit=0",
        "MaxJobCount=20000",
        "MaxArraySize=20001",
        "PropagateResourceLimits=NONE",
        "TreeWidth=65533",
        "GresTypes=gpu",
    ]


def _accounting(place: Place, options: Options, here: Here) -> list[str]:
    # with munge, the "password" is the socket: connections to slurmdbd do not read AuthInfo
    munge = [f"AccountingStoragePass={place.inside}/run/munge.sock"] if options.auth == "munge" else []
    return [
        *munge,
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={here.database_port}",
        "AccountingStoreFlags=job_comment",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=limits,qos,associations",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        "PriorityType=priority/multifactor",
        "PriorityWeightQOS=1000",  # a job of a higher QOS does not wait behind older ones
    ]


def _no_accounting() -> list[str]:
    return ["AccountingStorageType=accounting_storage/none", "PriorityType=priority/basic"]


def _nodes(options: Options, here: Here) -> list[str]:
    ports = here.node_ports
    gpus = f" Gres=gpu:{options.gpus}" if options.gpus else ""
    return [
        f"NodeName=DEFAULT CPUs={options.cpus} Sockets=1 CoresPerSocket={options.cpus} ThreadsPerCore=1"
        f" RealMemory={options.memory} TmpDisk=0{gpus} State=UNKNOWN",
        f"NodeName=n[1-{len(ports)}] NodeHostname={here.host} NodeAddr={here.address} Port=[{ports[0]}-{ports[-1]}]",
        "PartitionName=main Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=10",
        "PartitionName=low Nodes=ALL DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=1",
    ]


def _replaced(lines: list[str], more: tuple[str, ...]) -> list[str]:
    """Replace lines with the same key: Slurm uses the last of two lines but warns about it in each command's stderr."""
    given = {_key(line) for line in more}
    return [line for line in lines if _key(line) not in given] + list(more)


def _key(line: str) -> str:
    """Return the key: the name for `MinJobAge=2`, name and value for `PartitionName=main …`."""
    name, _, value = line.split()[0].partition("=") if line.strip() else ("", "", "")
    return f"{name}={value}" if name.lower() in ("nodename", "partitionname") else name.lower()


def gres_conf(place: Place, options: Options) -> str:
    return f"Name=gpu File={place.inside}/dev/gpu[0-{options.gpus - 1}]\n" if options.gpus else ""


def cgroup_conf(version: tuple[int, int]) -> str:
    return "CgroupPlugin=disabled\n" if version >= _DISABLED_CGROUPS else ""


def slurmdbd_conf(place: Place, options: Options, here: Here, password: str) -> str:
    munge = [f"AuthInfo=socket={place.inside}/run/munge.sock"] if options.auth == "munge" else []
    jwt = ["AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={place.inside}/jwt.key"] if options.rest else []
    lines = [
        f"AuthType=auth/{options.auth}",
        *munge,
        *jwt,
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={here.database_port}",
        f"SlurmUser={here.user}",
        f"PidFile={place.inside}/run/slurmdbd.pid",
        f"LogFile={place.inside}/log/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        f"StoragePass={password}",
        "StorageLoc=slurm_acct_db",
        "CommitDelay=1",
    ]
    return "".join(f"{line}\n" for line in lines)


def mariadb_conf(place: Place, user: str) -> str:
    """Return MariaDB's settings: it listens only on a socket in a closed folder, and need not survive a power cut."""
    lines = [
        "[mariadbd]",
        f"user={user}",
        f"datadir={place.folder}/db/data",
        f"socket={place.folder}/db/mysql.sock",
        f"pid-file={place.folder}/db/mysql.pid",
        "skip-networking",
        "skip-name-resolve",
        "innodb-buffer-pool-size=64M",
        "innodb-log-file-size=8M",
        "innodb-lock-wait-timeout=900",
        "innodb-flush-log-at-trx-commit=0",
        "innodb-doublewrite=0",
        "innodb-flush-method=nosync",
    ]
    return "".join(f"{line}\n" for line in lines)


def database_init(password: str) -> str:
    """Return the statements that MariaDB runs at each start, one on each line."""
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';\n"
    )
