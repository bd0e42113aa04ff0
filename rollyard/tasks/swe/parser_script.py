"""A task's own parser of the log, in a sandbox in which no code of the agent has run."""

from __future__ import annotations

import secrets

from rollyard.core.errors import TaskError
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.swe.test_run import RunLog

PARSE_SECONDS = 120.0
MAX_RESULTS_BYTES = 16 << 20


async def run_parser(sandbox: Sandbox, script: str, log: RunLog) -> bytes:
    """Return the JSON file that the script writes; nothing if it writes none from this log. Raises TaskError if the sandbox
    refuses the files."""
    folder = f"/tmp/{secrets.token_hex(16)}"
    files = {"parser.py": script.encode("utf-8", "surrogateescape"), "output.log": log.output, "errors.log": log.errors}
    try:
        for name, data in files.items():
            await sandbox.write_file(f"{folder}/{name}", data)
    except OSError as error:
        raise TaskError(f"the parser script cannot be written in a fresh sandbox: {error}") from error
    await sandbox.bash(f"cd {folder} && python3 parser.py output.log errors.log results.json", PARSE_SECONDS)
    try:
        return await sandbox.read_file(f"{folder}/results.json", MAX_RESULTS_BYTES)
    except OSError:
        return b""
