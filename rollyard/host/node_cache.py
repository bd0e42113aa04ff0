"""Folder for files that many processes of a node share."""

from __future__ import annotations

import os
from pathlib import Path

from rollyard.host.sandbox_account import sandbox_account

SYSTEM_CACHE = Path("/var/cache/rollyard")


def node_cache() -> Path:
    """Return this node's folder for files that many sandboxes share: ${ROLLYARD_CACHE:-~/.cache/rollyard}.

    If the process runs as root, and this folder does not exist or the sandboxes' account cannot reach it, the folder is
    /var/cache/rollyard.
    """
    chosen = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
    if os.geteuid() != 0:
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen
    for folder in (chosen, SYSTEM_CACHE):
        if not folder.exists() and folder == SYSTEM_CACHE:
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        if folder.exists() and sandbox_account().can_reach(folder):
            return folder
    return SYSTEM_CACHE
