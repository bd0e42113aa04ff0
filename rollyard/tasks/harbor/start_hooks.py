"""Files by which code of an agent runs in each Python, or in each pytest, that a verifier starts.

Packages that are installed for development need them, and so they count. If the reward is lower without them, it has a mark.
"""

from __future__ import annotations

import posixpath
import re
import shlex

from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox_agent.left_out import MOST_NAMED
from rollyard.tasks.harbor.verifier_run import SHORT_SECONDS, shell

HOOK_FILES = r"/.*\.pth|/.*\.(?:dist|egg)-info/entry_points\.txt"
_MOST_BYTES = 1 << 16
_PACKAGES = re.compile("/(?:site|dist)-packages/")
_RUNS_CODE = re.compile(rb"import[ \t]")


async def start_hooks(sandbox: Sandbox) -> list[str]:
    """Return those of the agent's files that are such, before any of its code runs in this sandbox."""
    return [path for path in sandbox.named if await _is_hook(sandbox, path)]


async def without_hooks(sandbox: Sandbox, hooks: list[str]) -> bool:
    """Remove them from another sandbox with the agent's files. Return whether that worked, and whether all are known."""
    removed = await shell(sandbox, f"rm -f -- {shlex.join(hooks)}", SHORT_SECONDS) == 0
    return removed and len(sandbox.named) < MOST_NAMED


async def _is_hook(sandbox: Sandbox, path: str) -> bool:
    try:
        content = await sandbox.read_file(path, _MOST_BYTES)
    except OSError:  # a file that is no text of Python, such as the weights of a model, is elsewhere
        return _PACKAGES.search(path) is not None
    if not path.endswith(".pth"):
        return b"pytest11" in content
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    if any(map(_RUNS_CODE.match, lines)):
        return True
    # An archive on Python's path may have a sitecustomize
    places = [posixpath.join(posixpath.dirname(path), line.decode(errors="replace").rstrip()) for line in lines if line]
    files = f'for f in {shlex.join(places)}; do [ ! -f "$f" ] || exit 1; done'
    return b"\0" not in content and await shell(sandbox, files, SHORT_SECONDS) != 0
