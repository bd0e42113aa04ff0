"""The account under which sandboxes run. This account is never root.

A sandbox that root starts has root's uid on the host, even in a user namespace. The kernel does not limit the number of
root's processes, and allows root to write to /proc/sys. So root starts sandboxes as `nobody`. `nobody` must be able to
reach the sandboxes' files, so the path of the node's cache depends on this account (`node_cache`).
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict


class Credentials(TypedDict, total=False):
    """Keyword arguments of `subprocess` functions."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int

    @property
    def credentials(self) -> Credentials:
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_reach(self, path: Path) -> bool:
        """Whether this account can enter every folder above `path`, and read `path`. If this is not the process's own account,
        only the file modes decide."""
        if self.uid == os.geteuid():
            return os.access(path, os.R_OK)
        resolved = path.resolve()
        passable = all(self._may(parent.stat(), stat.S_IXOTH) for parent in resolved.parents)
        return passable and resolved.exists() and self._may(resolved.stat(), stat.S_IROTH)

    def _may(self, info: os.stat_result, bit: int) -> bool:
        shift = 6 if info.st_uid == self.uid else 3 if info.st_gid == self.gid else 0
        return bool(info.st_mode & bit << shift)


def sandbox_account() -> Account:
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def close_to_others(folder: Path) -> None:
    """Let no other account into a folder of this process: only its own and that of the sandboxes, which can enter the folder
    but neither list nor change it."""
    account = sandbox_account()
    if account.uid == os.geteuid():
        folder.chmod(0o700)
    else:
        os.chown(folder, -1, account.gid)
        folder.chmod(0o710)
