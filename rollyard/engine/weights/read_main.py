"""The process that reads one folder of weights for `folder_reading.py`: `read_main REQUEST`, both in JSON.

It runs at each start of an engine and each change of weights. Without pydantic it takes a quarter of the CPU time.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rollyard.core.errors import FileMissing, Invalid
from rollyard.engine.weights.source import TargetFiles, WeightsSource, folder_checksum, read_source, weight_files
from rollyard.model_folder.checkpoint_info import CheckpointInfo, read_checkpoint_info


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody reads the answer any more
    request = json.loads(sys.argv[1])
    try:
        answer = _answer(request)
    except Invalid as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": f"WeightsUnavailable: {error.filename or ''} cannot be read: {error.strerror}"}
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        answer = {"refused": f"WeightsUnavailable: the folder cannot be read: {type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer))
    return 0


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if (folder := request.get("checksum_of")) is not None:
        return {"checksum": folder_checksum(Path(folder))}
    own, target = Path(request["own"]), request["target"]
    order = None if target is None else TargetFiles(**target)
    folder = own if order is None or order.path is None else Path(order.path)
    weight_files(folder)
    # The headers come first: they show in a moment what the checksum of all files shows after minutes.
    info = _info(folder, needed=request["needs_info"])
    return {"source": _as_json(read_source(own, order)), "info": info}


def _info(folder: Path, *, needed: bool) -> dict[str, Any] | None:
    """Read the configuration and the shapes. If they are not `needed` and the folder lacks a file for them, return None.
    Raises Invalid."""
    try:
        found: CheckpointInfo = read_checkpoint_info(folder)
    except FileMissing:
        if needed:
            raise
        return None
    return {"config": found.config, "shapes": found.shapes}


def _as_json(source: WeightsSource) -> dict[str, Any]:
    adapter = None if source.adapter is None else str(source.adapter)
    return {"version": source.version, "checksum": source.checksum, "folder": str(source.folder), "adapter": adapter}


if __name__ == "__main__":
    sys.exit(main())
