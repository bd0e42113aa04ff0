"""An ordinary user of this machine, who runs a whole yard, as most users of a cluster do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollyard.host.node_cache import node_cache
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import Account, Credentials, sandbox_account
from rollyard.sandbox.bundled_python import own_python
from tests.support.open_python import open_python

SIZE = "512M"
BUILD = """
import sys
from pathlib import Path
from rollyard.sandbox.bundled_python import own_python
print(own_python(Path(sys.argv[1])))
"""


@dataclass(frozen=True)
class OrdinaryUser:
    account: Account
    python: str
    environment: dict[str, str]
    own_python: Path
    """The Python for the inside of sandboxes, as this user's node agents have it."""

    @property
    def credentials(self) -> Credentials:
        return self.account.credentials


def ordinary_user(account: Account | None = None) -> OrdinaryUser:
    """Return the user `nobody`, or that of `account`, with a cache of its own that stays on the machine. Skips the test if
    this process is not root, because then every other test runs as an ordinary user already, or if there is no Python for
    other users."""
    if os.geteuid() != 0:
        pytest.skip("all tests run as an ordinary user here")
    account, shared = account or sandbox_account(), node_cache()
    python, modules = open_python()
    cache = shared / f"tests-of-{account.uid}"
    cache.mkdir(exist_ok=True)
    os.chown(cache, account.uid, account.gid)
    if (shared / "apptainer").is_dir() and not (cache / "apptainer").exists():
        (cache / "apptainer").symlink_to(shared / "apptainer")
    environment = {"ROLLYARD_CACHE": str(cache), "APPTAINER_CONFIGDIR": str(cache / "apptainer-settings")}
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), modules])
    done = subprocess.run(
        [python, "-c", BUILD, cache], env=environment, cwd="/", stdout=subprocess.PIPE, text=True, check=True,
        **account.credentials,
    )  # fmt: skip
    return OrdinaryUser(account, python, environment, Path(done.stdout.strip()))


@contextlib.contextmanager
def home_of(user: OrdinaryUser | None) -> Iterator[Path]:
    """Make a folder of this user, or of the one who runs the tests, in a place that every user reaches."""
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    _give(folder, user)
    try:
        yield folder
    finally:
        remove_folder(folder)


@contextlib.contextmanager
def small_cache(folder: Path, user: OrdinaryUser | None) -> Iterator[Path | None]:
    """Mount a small file system at a new folder, for a node agent's cache, with a copy of what takes long to build, and a link
    to Apptainer. None: this process may not mount."""
    folder.mkdir()
    _give(folder, user)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "cache", folder], check=False).returncode:
        yield None
        return
    try:
        folder.chmod(0o755)
        _give(folder, user)
        subprocess.run(["cp", "-a", user.own_python if user else own_python(node_cache()), folder], check=True)
        if (apptainer := node_cache() / "apptainer").is_dir():
            (folder / apptainer.name).symlink_to(apptainer)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _give(folder: Path, user: OrdinaryUser | None) -> None:
    if user is not None:
        os.chown(folder, user.account.uid, user.account.gid)
