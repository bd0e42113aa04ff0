"""The cluster's folder: its content before the first daemon starts."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil

from . import conf
from .options import ClusterError, Options, Place

RECORD = "devcluster.json"
_LONGEST = 60
"""Slurm's daemons create Unix sockets in the folder, and the path of one has at most 107 characters."""
_COMMANDS = ("sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue", "srun")


def lay_out(place: Place, options: Options, here: conf.Here) -> None:
    """Write the folder. Raises ClusterError for a folder that holds anything but a former cluster's files."""
    _clear(place)
    for name in ("state", "log", "run", "dev", "db", "bin", *(f"spool/n{i + 1}" for i in range(options.nodes))):
        (place.folder / name).mkdir(parents=True)
    for name in (".", "run"):
        (place.folder / name).chmod(0o755)  # other users submit too, and secret files in it are closed themselves
    for name in ("state", "db"):
        (place.folder / name).chmod(0o700)
    _write_conf(place, options, here)
    _write_secret(place, "munge.key", secrets.token_bytes(128))
    _write_secret(place, "jwt.key", secrets.token_bytes(32))
    for index in range(options.gpus):  # one device file for each: Slurm refuses a repeated one
        (place.folder / "dev" / f"gpu{index}").symlink_to("/dev/null")
    if options.command():
        _write_shims(place, options)


def _clear(place: Place) -> None:
    folder = place.folder
    if len(str(place.inside)) > _LONGEST:
        raise ClusterError(f"{place.inside} is too long for its sockets: take one of at most {_LONGEST} letters")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / RECORD).exists():
        raise ClusterError(f"{folder} holds something else: name a new or an empty folder")
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _write_conf(place: Place, options: Options, here: conf.Here) -> None:
    folder = place.folder
    (folder / "slurm.conf").write_text(conf.slurm_conf(place, options, here))
    (folder / "gres.conf").write_text(conf.gres_conf(place, options))
    (folder / "cgroup.conf").write_text(conf.cgroup_conf(here.version))
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        (folder / name).chmod(0o644)  # regardless of the umask: slurmrestd may run as nobody
    if options.accounting:
        password = secrets.token_hex(16)
        _write_secret(place, "slurmdbd.conf", conf.slurmdbd_conf(place, options, here, password).encode())
        _write_secret(place, "db/my.cnf", conf.mariadb_conf(place, here.user).encode())
        _write_secret(place, "db/init.sql", conf.database_init(password).encode())


def _write_secret(place: Place, name: str, content: bytes) -> None:
    with open(place.folder / name, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(content)


def _write_shims(place: Place, options: Options) -> None:
    """Write wrappers of Slurm's commands for programs that do not know the wrapper option; they come first in PATH."""
    shims = place.folder / "bin"
    entry = shims / "wrapped"
    entry.write_text(_WRAPPED.format(shims=shlex.quote(str(shims)), wrapper=options.shell_command()))
    entry.chmod(0o755)
    for name in _COMMANDS:
        (shims / name).symlink_to(entry.name)


_WRAPPED = """\
#!/bin/sh
# This folder leaves PATH: where the wrapper shows it too, the command would lead back here for ever.
set -f
IFS=:
path=
for folder in $PATH; do
  [ "$folder" = {shims} ] || path=${{path:+$path:}}$folder
done
unset IFS
export PATH="$path"
# A chroot leaves the working folder, which the command takes to be the job's.
exec {wrapper} /bin/sh -c 'cd "$1" 2>/dev/null; shift; exec "$@"' sh "$PWD" "${{0##*/}}" "$@"
"""
