"""Sandboxes on this machine: runtimes, images, limits, and the client of the sandbox agent.

`open_sandbox` opens one for any program: `from rollyard.sandbox import open_sandbox`. The node agent keeps many, with
`SandboxFactory` and `WarmSandboxes`. The public names are imported on first use, because the memory guard and the starter,
which are small processes, import this package and need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollyard.sandbox.base import Limits
    from rollyard.sandbox.sandbox import Sandbox
    from rollyard.sandbox.sandbox_factory import SandboxFactory
    from rollyard.sandbox.snapshot import SandboxSnapshot, SnapshotPart
    from rollyard.sandbox.standalone import open_sandbox

__all__ = ["Limits", "Sandbox", "SandboxFactory", "SandboxSnapshot", "SnapshotPart", "open_sandbox"]


_MODULES = {
    "Limits": "base",
    "Sandbox": "sandbox",
    "SandboxFactory": "sandbox_factory",
    "SandboxSnapshot": "snapshot",
    "SnapshotPart": "snapshot",
    "open_sandbox": "standalone",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
