"""`~/.rollyard/config`, from which commands without `--kubeconfig` take their server: a link to the newest server's
kubeconfig."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def link_newest(kubeconfig: Path, link: Path) -> str | None:
    """Let `link` name this kubeconfig. Return a sentence if commands used another server before, or still do.

    A file that is no link belongs to the user and stays. If the home folder cannot be written, nothing happens.
    """
    before: Path | None = None
    with contextlib.suppress(OSError):
        before = link.readlink()
    if before is None and link.exists():
        return (
            f"{link} is a file of yours and stays. For commands to this server: export ROLLYARD_KUBECONFIG={kubeconfig}"
        )
    with contextlib.suppress(OSError):
        link.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(kubeconfig)
        fresh.replace(link)
        if before not in (None, kubeconfig) and before.exists():
            return (
                f"commands now go to this server, because {link} names its kubeconfig. "
                f"For commands to the one before: export ROLLYARD_KUBECONFIG={before}"
            )
    return None
