"""Checks the model's chat template while the engine starts. Without this check, an unusable template would
show only when the first call fails."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sys
from pathlib import Path

import rollyard
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, end_engine, start_engine
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import ModelSpec

log = logging.getLogger(__name__)

CHECK_SECONDS = 600.0
"""Limit for one check, which imports transformers and reads a tokenizer, possibly from a network folder."""
REASON = "TemplateUnusable"
FILES = (
    "config.json", "generation_config.json", "tokenizer*", "*.jinja", "additional_chat_templates/*",
    "special_tokens_map.json", "vocab*",
)  # fmt: skip


async def check_template(model: ModelSpec) -> None:
    """Check the template in a child process. After a success, the same files are not checked again. If the check
    itself fails, only log a warning. Raises EngineFailed if the template is unusable, or if the child process cannot be
    started."""
    folder, own = Path(model.tokenizer or model.path), Path(model.path)
    kept = await asyncio.to_thread(_marker_file, folder, own)
    if await asyncio.to_thread(_is_already_checked, folder, kept):
        return
    argv = [sys.executable, "-m", "rollyard.tokens.check_template", str(folder), str(own)]
    process = await start_engine(EngineCommand(argv), stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            output = (await process.communicate())[0].decode(errors="replace").strip()
    except TimeoutError:
        log.warning("the check of the chat template of %s did not finish within %g s", folder, CHECK_SECONDS)
        return
    finally:
        await end_engine(process)
    why = output.rpartition("\n")[2]
    if process.returncode and why.startswith(REASON):
        raise EngineFailed(Reason.parse(why))
    if process.returncode:
        log.warning("the chat template of %s could not be checked; the reason is above", folder)
        return
    with contextlib.suppress(OSError):  # if the cache cannot be written, the next start checks again
        await asyncio.to_thread(_write_marker, kept)


def _is_already_checked(folder: Path, kept: Path) -> bool:
    """Return True if no check is needed: the marker exists, or the folder is missing. An engine without this folder
    fails with an error of its own."""
    return kept.exists() or not folder.is_dir()


def _marker_file(folder: Path, model: Path) -> Path:
    """Return the path of the marker that records a successful check of the `FILES` in both folders."""
    digest = hashlib.sha256(rollyard.__version__.encode())
    for where in dict.fromkeys((folder, model)):
        for file in sorted({f for pattern in FILES for f in where.glob(pattern) if f.is_file()}):
            found = file.stat()
            digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}\0".encode())
    cache = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
    return cache / "templates" / digest.hexdigest()[:16]


def _write_marker(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
