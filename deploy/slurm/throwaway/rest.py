"""slurmrestd, twice: on a Unix socket, and on a loopback port for clients with a token."""

from __future__ import annotations

import os
import socket

from .conf import Here
from .daemons import Daemons
from .machine import run
from .options import ClusterError, Options, Place

SOCKET = "run/rest/restd.sock"
_RUNS_AS_SLURM_USER = (22, 5)
"""The last Slurm whose slurmrestd can run as Slurm's user; later ones exit with an error."""
_NOBODY = 65534


def start_rest(daemons: Daemons, options: Options, here: Here) -> None:
    """Start both. On the socket slurmrestd identifies its own user by the connection; run as nobody, it requires a
    token there too.

    Raises ClusterError when it must run as nobody and this process is not root.
    """
    place = daemons.place
    as_us = here.version <= _RUNS_AS_SLURM_USER
    if not as_us and os.getuid() != 0:
        raise ClusterError("this slurmrestd does not run as SlurmUser: use --rest as root, then it runs as nobody")
    env = {"SLURMRESTD_SECURITY": "disable_user_check"} if as_us else {}
    identity = [] if as_us else ["-u", str(_NOBODY), "-g", str(_NOBODY)]
    program = options.command("slurmrestd", "-f", str(place.conf), *identity)
    program += ["-s", ",".join(_plugins(program, place, options, env))]
    token = {**env, "SLURM_JWT": "daemon"}
    folder = (place.folder / SOCKET).parent
    folder.mkdir(exist_ok=True)
    if not as_us:
        os.chown(folder, _NOBODY, _NOBODY)
    local = ["-a", "rest_auth/local" if as_us else "rest_auth/jwt", f"unix:{place.inside}/{SOCKET}"]
    daemons.add("slurmrestd", [*program, *local], env if as_us else token)
    daemons.add("slurmrestd-jwt", [*program, "-a", "rest_auth/jwt", f"127.0.0.1:{here.rest_port}"], token)


def _plugins(program: list[str], place: Place, options: Options, env: dict[str, str]) -> list[str]:
    """List the plugins that this slurmrestd should serve; without slurmdbd, the database's plugins would end it."""
    done = run([*program, "-s", "list"], {"SLURM_CONF": str(place.conf), **env})
    words = (done.stdout + done.stderr).split()
    found = [word for word in words if word.startswith("openapi/")]
    if not found:
        raise ClusterError(f"{' '.join(program)} -s list names no plugin:\n{done.stdout}{done.stderr}")
    return [name for name in found if options.accounting or not name.startswith(("openapi/db", "openapi/slurmdbd"))]


def answers(place: Place) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(f"{place.folder}/{SOCKET}") == 0


def client_environment(place: Place, here: Here) -> dict[str, str]:
    return {
        "SLURMRESTD_SOCKET": str(place.folder / SOCKET),
        "SLURMRESTD_URL": f"http://127.0.0.1:{here.rest_port}",
    }
