"""Programs of Debian's packages. They are fetched and unpacked in the cache on their first use on a machine, not installed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollyard.host.node_cache import node_cache

CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
LIBRARY_FOLDERS = ("lib/*-linux-*", "usr/lib/*-linux-*")


def debian_program(package: str, name: str) -> Path:
    """Return a file of a Debian package. The package comes with all packages that it needs and that this machine lacks.

    If it brought libraries, the returned file is a script that starts the program with them, under the program's name.
    The sandboxes' account can run it.
    """
    folder = node_cache() / "debian" / package
    with build_lock(folder):
        if not folder.exists():
            _fetch(package, folder)
    script = folder / "with-libraries" / Path(name).name
    return script if script.exists() else folder / name


@contextmanager
def build_lock(prefix: Path) -> Iterator[None]:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with open(prefix.with_name(f"{prefix.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip(f"needs Debian's package {package}, and this machine has no apt-get")
    growing = folder.with_name(f"{package}.new")
    shutil.rmtree(growing, ignore_errors=True)  # of a run that was killed
    growing.mkdir()
    _apt("download", *_packages(package), folder=growing)
    for file in growing.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", file, growing], check=True)
        file.unlink()
    _add_scripts(growing, folder)
    growing.rename(folder)


def _packages(package: str) -> list[str]:
    """Return the package, and the packages that this machine lacks for it."""
    install = ("--simulate", "--no-install-recommends", "install", package)
    try:
        plan = _apt(*install)
    except AssertionError:
        if os.geteuid() != 0:
            raise
        _apt("update")  # a bare machine has no lists of packages
        plan = _apt(*install)
    missing = re.findall(r"^Inst (\S+) \(", plan, re.MULTILINE)  # an upgrade has the old version in brackets here
    return list(dict.fromkeys([package, *missing]))


def _add_scripts(folder: Path, final: Path) -> None:
    """Make a script for each program, if the packages brought libraries. `final`: name of the folder later on."""
    libraries = [path for pattern in LIBRARY_FOLDERS for path in folder.glob(pattern) if any(path.glob("*.so*"))]
    if not libraries:
        return
    search = ":".join(str(final / path.relative_to(folder)) for path in libraries)
    (folder / "with-libraries").mkdir()
    for program in (path for name in ("bin", "sbin", "usr/bin", "usr/sbin") for path in folder.glob(f"{name}/*")):
        script = folder / "with-libraries" / program.name
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={search} exec {final / program.relative_to(folder)} "$@"\n')
        script.chmod(0o755)


def _apt(*arguments: str, folder: Path | None = None) -> str:
    command = ["apt-get", "-qq", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
