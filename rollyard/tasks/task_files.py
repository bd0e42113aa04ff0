"""Files of a task, which are in the sandbox when the agent starts."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.core.errors import TaskError
from rollyard.sandbox.sandbox import Sandbox


async def write_files(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Write the files, given as path -> text. Raises TaskError if the sandbox refuses one."""
    for path, text in files.items():
        try:
            await sandbox.write_file(path, text.encode())
        except OSError as error:
            raise TaskError(f"the task's file {path} cannot be written: {error}") from error
