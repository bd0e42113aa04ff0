"""Limits of the node agent's own process."""

from __future__ import annotations

import resource


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit. A node agent has a few files for each sandbox and each stream;
    the usual soft limit is 1024. Files of sandboxes that are on their way in messages count against it too (unix(7))."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
