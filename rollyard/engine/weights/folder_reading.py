"""Reads folders of weights in a process of its own, which can be ended at any time.

A folder is written by others: reading it may take minutes, hang in a network file system, or fill the memory. None of
this may reach the engine's own process, which relays tokens, or delay the next update.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollyard.core.errors import Invalid
from rollyard.core.exit_codes import exit_code_text
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, start_child
from rollyard.engine.weights.source import TargetFiles, WeightsSource
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.wire.engine import WeightsTarget

MODULE = "rollyard.engine.weights.read_main"
END_SECONDS = 1.0
"""Longest wait for the end of a killed process. A process that waits for a dead file server ends only when the server
is back; nobody waits for it."""


async def read_weights(
    own: Path, target: WeightsTarget | None, *, needs_info: bool
) -> tuple[WeightsSource, CheckpointInfo | None]:
    """Read the weights of a target in a process. If the information is not needed and the folder lacks a file for it,
    it is None. Raises Invalid."""
    order = None
    if target is not None:
        order = asdict(TargetFiles(target.version, target.path, target.adapter, target.checksum))
    answer = await _read({"own": str(own), "target": order, "needs_info": needs_info})
    source, info = answer["source"], answer["info"]
    adapter = source["adapter"]
    found = WeightsSource(
        source["version"], source["checksum"], Path(source["folder"]), None if adapter is None else Path(adapter)
    )
    if info is None:
        return found, None
    return found, CheckpointInfo(info["config"], {name: tuple(shape) for name, shape in info["shapes"].items()})


async def changed_on_disk(source: WeightsSource) -> str:
    """Describe the change if the source's files have changed since they were read; return an empty text if not."""
    folder = source.adapter or source.folder
    try:
        found = (await _read({"checksum_of": str(folder)}))["checksum"]
    except Invalid as error:
        return str(error)
    return "" if found == source.checksum else source.mismatch_text(found)


async def _read(request: dict[str, Any]) -> dict[str, Any]:
    """Run the process and return its answer. Cancelling ends the process. Raises Invalid."""
    try:
        process = await start_child(
            EngineCommand([sys.executable, "-m", MODULE, json.dumps(request)]), stdout=asyncio.subprocess.PIPE
        )
    except EngineFailed as failed:
        raise Invalid(f"WeightsUnavailable: the folder cannot be read: {failed.why.message}") from None
    try:
        output = (await process.communicate())[0]
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=END_SECONDS)
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        code = process.returncode or 0
        how = exit_code_text(128 - code if code < 0 else code)
        raise Invalid(
            f"WeightsUnavailable: the process that reads the folder ended without an answer ({how})"
        ) from None
    if why := answer.get("refused"):
        raise Invalid(why)
    return answer
