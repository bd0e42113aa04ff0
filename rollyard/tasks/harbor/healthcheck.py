"""The health check of a task's environment: a command that must succeed before the agent begins."""

from __future__ import annotations

import asyncio
import time

from rollyard.core.errors import TaskError
from rollyard.kinds.harbor_config import Healthcheck
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks.harbor.verifier_run import shell


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck | None) -> None:
    """Repeat the command until it succeeds. Failures in the start period do not count. Raises TaskError after too many
    failures."""
    if check is None:
        return
    start_ends, failures = time.monotonic() + check.start_period_sec, 0
    while True:
        starting = time.monotonic() < start_ends
        if await shell(sandbox, check.command, check.timeout_sec) == 0:
            return
        failures += not starting
        if failures >= max(check.retries, 1):
            raise TaskError(f"the environment is not healthy: {check.command!r} failed {failures} times in a row")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)
