"""Builds the command that runs an engine in a container image, with Apptainer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rollyard.engine.process.child_process import EngineFailed
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.kinds.base import Reason

PROBE_SECONDS = 60.0


def in_container(
    program: str, image: str, *, gpus: bool, writable: Sequence[str] = (), readable: Sequence[str] = ()
) -> list[str]:
    """Return the words to put before a command, so that it runs in `image`. The command has the environment, the home
    and /tmp of the job."""
    words = [program, "exec"]
    if os.geteuid() == 0:  # without setuid, Apptainer can mount only in a user namespace of its own, even as root
        words.append("--userns")
    if gpus:
        words.append("--nv")
    for path in writable:
        words += ["--bind", path]
    for path in readable:
        words += ["--bind", f"{path}:{path}:ro"]
    return [*words, image]


def container_program(image: str) -> str:
    """Find Apptainer or Singularity, in the same places as for sandboxes. If there are several, return the first that
    can run a program in the image, or else the first of all, whose error the start of the engine then reports. Blocks.

    Raises EngineFailed if there is none.
    """
    found = [program for _, program in apptainer_programs(Path(node_cache()))]
    if not found:
        why = (
            "`engine.vllm.image` needs Apptainer, which this node does not have; install it (on Debian with "
            "deploy/apptainer/install.sh, without root), or name an interpreter in `engine.vllm.python`"
        )
        raise EngineFailed(Reason("EngineMissing", why))
    if len(found) == 1:
        return found[0]
    return next((program for program in found if _runs(program, image)), found[0])


def _runs(program: str, image: str) -> bool:
    argv = [*in_container(program, image, gpus=False), "true"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
