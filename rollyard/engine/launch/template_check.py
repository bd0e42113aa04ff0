"""Checks the model's chat template and its tool calls while the engine starts. Without this check, an unusable template
would show only when the first call fails."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import sys
from pathlib import Path

import rollyard
from rollyard.engine.process.child_process import EngineCommand, EngineFailed, end_child, start_child
from rollyard.kinds.base import Reason
from rollyard.kinds.engine_spec import ModelSpec
from rollyard.wire.tool_proof import ToolProof

log = logging.getLogger(__name__)

CHECK_SECONDS = 600.0
"""Limit for one check, which imports transformers and reads a tokenizer, possibly from a network folder."""
REASON = "TemplateUnusable"
FILES = (
    "config.json", "generation_config.json", "tokenizer*", "*.jinja", "additional_chat_templates/*",
    "special_tokens_map.json", "vocab*",
)  # fmt: skip


async def check_template(model: ModelSpec) -> ToolProof | None:
    """Check the template in a child process, and return whether its tool calls are read. After a success, the same files
    are not checked again. If the check itself fails, log a warning and return None. Raises EngineFailed if the template is
    unusable, or if the child process cannot be started."""
    folder, own = Path(model.tokenizer or model.path), Path(model.path)
    kept = await asyncio.to_thread(_kept_result, folder, own, model.tool_parser)
    if (known := await asyncio.to_thread(_read, kept)) is not None or not await asyncio.to_thread(folder.is_dir):
        return known  # an engine without this folder fails with an error of its own
    argv = [sys.executable, "-m", "rollyard.tokens.check_template", str(folder), str(own)]
    argv += [model.tool_parser] if model.tool_parser is not None else []
    process = await start_child(EngineCommand(argv), stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            output = (await process.communicate())[0].decode(errors="replace").strip()
    except TimeoutError:
        log.warning("the check of the chat template of %s did not finish within %g s", folder, CHECK_SECONDS)
        return None
    finally:
        await end_child(process)
    last = output.rpartition("\n")[2]
    if process.returncode and last.startswith(REASON):
        raise EngineFailed(Reason.parse(last))
    if process.returncode:
        log.warning("the chat template of %s could not be checked; the reason is above", folder)
        return None
    with contextlib.suppress(OSError):  # if the cache cannot be written, the next start checks again
        await asyncio.to_thread(_write, kept, last)
    return ToolProof.model_validate_json(last)


def _kept_result(folder: Path, model: Path, tool_parser: str | None) -> Path:
    """Return the path of the file that has the result of a successful check of the `FILES` in both folders."""
    digest = hashlib.sha256(f"{rollyard.__version__}\0{tool_parser}".encode())
    for where in dict.fromkeys((folder, model)):
        for file in sorted({f for pattern in FILES for f in where.glob(pattern) if f.is_file()}):
            found = file.stat()
            digest.update(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}\0".encode())
    cache = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
    return cache / "templates" / f"{digest.hexdigest()[:16]}.json"


def _read(path: Path) -> ToolProof | None:
    """Return the result of an earlier check; None if there is none, or if a crash left half of it."""
    try:
        return ToolProof.model_validate_json(path.read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, result: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result)
