"""The plan to start an engine on this node. The command of vLLM depends on the release that is installed here.

An engine in a container image is run with Apptainer.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.core.errors import Invalid
from rollyard.engine.launch.command_line import Host, engine_command
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.engine.process.child_process import EngineCommand, EngineFailed
from rollyard.engine.vllm.installed_vllm import vllm_build
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import VllmEngine
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.model_folder.json_file import read_object


@dataclass(frozen=True)
class LaunchPlan:
    """The start of one engine."""

    spec: InferencePoolSpec
    uds: Path
    place: GangRank | None = None

    async def __call__(self) -> EngineCommand:
        """Return the command of `engine_command`. Raises EngineFailed if this node lacks a requirement, and
        Invalid for an external engine."""
        spec, vllm = self.spec, self.spec.engine.vllm
        if vllm is None:
            return engine_command(spec, self.uds, self.place)
        interpreter = await asyncio.to_thread(_interpreter, spec, vllm, self.uds)
        build = await vllm_build(interpreter, vllm.env)
        context = vllm.max_model_len or await asyncio.to_thread(_context_length, Path(spec.model.path))
        return engine_command(spec, self.uds, self.place, Host(interpreter, build, context))


def _interpreter(spec: InferencePoolSpec, engine: VllmEngine, uds: Path) -> list[str]:
    if engine.image is None:
        return [engine.python]
    models = dict.fromkeys(path for path in (spec.model.path, spec.model.tokenizer) if path is not None)
    gpus = spec.allocation.gpus > 0
    around = in_container(
        container_program(engine.image), engine.image, gpus=gpus, writable=[str(uds.parent)], readable=list(models)
    )
    return [*around, engine.python]


def _context_length(model: Path) -> int | None:
    """Read the context length from the model's `config.json`; None if the file or this value is missing."""
    try:
        config = read_object(model / "config.json")
    except Invalid:
        return None
    text = config.get("text_config")
    found = config.get("max_position_embeddings") or (text if isinstance(text, dict) else {}).get(
        "max_position_embeddings"
    )
    return found if isinstance(found, int) else None


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
