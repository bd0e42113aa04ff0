"""Small root file systems that tests make: busybox, and a Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.debian_packages import CACHE, build_lock, debian_program


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


def python_root(folder: Path) -> Path:
    """Make a root file system with busybox, bash, and this machine's python3. Its library is compiled, as it is in images: else
    every run of Python would compile what it imports."""
    program = Path("/usr/bin/python3").resolve()
    if not program.exists():
        pytest.skip("needs /usr/bin/python3")
    root = busybox_root(folder)
    (root / "bin" / "bash").unlink(missing_ok=True)
    names = subprocess.run(
        [program, "-Ic", "import sysconfig; print(sysconfig.get_path('stdlib'))"], capture_output=True
    )
    library = Path(names.stdout.decode().strip())
    left_out = shutil.ignore_patterns("test", "idlelib", "dist-packages", "site-packages", "ensurepip", "config-*")
    shutil.copytree(
        library, root / library.relative_to("/"), ignore=left_out, symlinks=True, ignore_dangling_symlinks=True
    )
    modules = (library / "lib-dynload").glob("*.so")
    for source, place in ((program, "usr/bin/python3"), (Path(shutil.which("bash") or "/bin/bash"), "bin/bash")):
        shutil.copy2(source, root / place)
    listed = subprocess.run(["ldd", program, "/bin/bash", *modules], capture_output=True, text=True, check=False).stdout
    for found in {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}:
        place = root / found.lstrip("/")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, place)
    return root


def add_git(root: Path) -> None:
    add_program(root, "git")


def add_program(root: Path, name: str) -> None:
    """Put a program of this machine into a root file system, with its libraries."""
    program = shutil.which(name)
    assert program is not None, f"these tests need {name}: apt-get install {name}"
    shutil.copy2(program, root / "usr/bin" / name)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for found in {word for word in listed.split() if word.startswith("/")}:
        place = root / found.lstrip("/")
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(found, place)


def _busybox() -> Path:
    """Return a static busybox: this machine's, or the one of Debian's package, which is fetched once."""
    found = shutil.which("busybox")
    if found and b"not a dynamic" in subprocess.run(["ldd", found], capture_output=True, check=False).stderr:
        return Path(found)
    return debian_program("busybox-static", "bin/busybox")


def debian_archive(*packages: str) -> Path:
    """Return a tar archive with a small Debian, which mmdebstrap makes once on a machine, in 20 s, and longer with further
    packages."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap: apt-get install mmdebstrap")
    name = "-".join(("debian-12-apt", *packages))
    archive = CACHE / f"{name}.tar"
    with build_lock(CACHE / name):
        if not archive.exists():
            growing = archive.with_suffix(".new.tar")
            mode = "--mode=root" if os.geteuid() == 0 else "--mode=unshare"
            command = ["mmdebstrap", "--quiet", mode, "--variant=apt", "bookworm", growing]
            command += [f"--include={','.join(packages)}"] if packages else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            growing.rename(archive)
    return archive
