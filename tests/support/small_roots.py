"""Small root file systems that tests make: busybox, and a Debian."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")


def busybox_root(folder: Path) -> Path:
    """Make a root file system with busybox, its links, and the files that programs expect."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy2(_busybox(), folder / "bin" / "busybox")
    names = subprocess.run([folder / "bin" / "busybox", "--list"], capture_output=True, text=True, check=True).stdout
    for name in names.split():
        if name != "busybox":
            (folder / "bin" / name).symlink_to("busybox")
    for name in ("etc", "tmp", "root", "usr/bin", "proc", "dev"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    for above, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(above, name)
            path.chmod(path.stat().st_mode | 0o755)
    folder.chmod(0o755)
    return folder


def _busybox() -> Path:
    """Return a static busybox: this machine's, or the one of Debian's package, which is fetched once."""
    found = shutil.which("busybox")
    if found and b"not a dynamic" in subprocess.run(["ldd", found], capture_output=True, check=False).stderr:
        return Path(found)
    prefix = _CACHE / "busybox-static"
    if not (prefix / "bin" / "busybox").exists():
        prefix.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-qq", "download", "busybox-static"], cwd=prefix, check=True, capture_output=True)
        (package,) = prefix.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, prefix], check=True)
    return prefix / "bin" / "busybox"


def debian_archive() -> Path:
    """Return a tar archive with a small Debian, which mmdebstrap makes once on a machine, in 20 s."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap: apt-get install mmdebstrap")
    _CACHE.mkdir(parents=True, exist_ok=True)
    archive = _CACHE / "debian-12-apt.tar"
    with open(_CACHE / "debian-12-apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            growing = archive.with_suffix(".new.tar")
            mode = "--mode=root" if os.geteuid() == 0 else "--mode=unshare"
            command = ["mmdebstrap", "--quiet", mode, "--variant=apt", "bookworm", growing]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            growing.rename(archive)
    return archive
