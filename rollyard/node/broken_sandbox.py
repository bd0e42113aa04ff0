"""Decision whose fault it is that the sandbox of EVAL cannot be used: the agent's, or ours, the node's or the site's.

Two sandboxes on the same node decide, one after the other, and both are asked the same small question: the task kind's
`probe`. The control begins with the image alone. The other one begins with the agent's files, as the first one did. If the
control answers and the other does not, the agent's files are the cause, and that is certain. In every other case nobody
knows, and the rollout is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from rollyard.core.errors import (
    ImageNotFound,
    ImageUnavailable,
    RollyardError,
    SandboxBroken,
    SandboxError,
    SandboxLost,
    SnapshotRefused,
    SnapshotUnusable,
    StageTimeout,
    TaskError,
)
from rollyard.sandbox.sandbox import Sandbox

CONTROL_SECONDS = 60.0
"""Seconds in which the control must have started and answered. A slower node is in trouble itself."""

Started = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Starts a sandbox, and ends it when the block is left."""
Probe = Callable[[Sandbox], Awaitable[None]]
"""Asks a sandbox whether it can be used. Raises SandboxError or TaskError if not."""


def is_doubtful(error: RollyardError) -> bool:
    """Return whether the agent's files may be the cause of an error of EVAL."""
    if isinstance(error, SnapshotUnusable):
        return isinstance(error, SnapshotRefused)
    return isinstance(error, SandboxError | StageTimeout | TaskError) and not isinstance(
        error, ImageUnavailable | ImageNotFound
    )


async def judge(error: RollyardError, control: Started, with_files: Started, probe: Probe) -> RollyardError:
    """Return the error with which the evaluation ends: SandboxBroken if the agent is the cause, else `error`."""
    if not is_doubtful(error):
        return error
    try:
        async with asyncio.timeout(CONTROL_SECONDS), control() as sandbox:
            await probe(sandbox)
    except (RollyardError, TimeoutError):
        return error
    try:
        async with with_files() as sandbox:
            await probe(sandbox)
            return error
    except SandboxLost:  # something may have killed it
        return error
    except RollyardError as again:
        if not is_doubtful(again) or sandbox.node_fault or sandbox.lost_files():
            return error
        return SandboxBroken(f"with the agent's files the sandbox cannot be used, and without them it can: {again}")
