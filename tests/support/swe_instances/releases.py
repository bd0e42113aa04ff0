"""Sources of released packages: sdists of PyPI, tarballs of npm, and libraries in Go and Rust as Debian packs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from rollyard.host.node_cache import node_cache
from rollyard.sandbox.build_once import build_once

CACHED = node_cache() / "swe-instances"
_MADE = ("*.egg-info", "PKG-INFO", "__pycache__", ".git*", "node_modules", ".nycrc", ".eslintrc", ".npmignore")
"""Files that packing adds, and settings of the forge."""
_PACKED = (".cargo-checksum.json", ".cargo_vcs_info.json", "Cargo.toml.orig", ".github", ".travis.yml", "debian")
"""The same in Debian's packages."""


def release(registry: str, name: str, version: str) -> Path:
    """Return a folder with the sources. `registry`: pypi, npm or debian."""
    fill = {"pypi": _sdist, "npm": _tarball, "debian": _debian_source}[registry]
    folder = CACHED / "releases" / f"{registry}-{name.replace('/', '+')}-{version}"
    return build_once(folder, lambda growing: fill(growing, name, version))


def _sdist(folder: Path, name: str, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--no-build-isolation", "--no-binary", ":all:", "--dest", str(folder), f"{name}=={version}"]
    _run(pip, folder)
    _unpack(folder)


def _tarball(folder: Path, name: str, version: str) -> None:
    _run(["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"], folder)
    _unpack(folder)


def _unpack(folder: Path) -> None:
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "all", filter="data")
    archive.unlink()
    (top,) = (folder / "all").iterdir()
    for pattern in _MADE:
        for path in top.rglob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in top.iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "all")


def _debian_source(folder: Path, name: str, suite: str) -> None:
    """`name`: package; for Go a colon and the import path in it. `suite`: Debian's release that has this version."""
    package, _, imported = name.partition(":")
    apt = build_once(CACHED / f"apt-{suite}", lambda growing: _lists(growing, suite))
    _run(["apt-get", "-qq", *_options(apt), "download", package], folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg-deb", "-x", str(archive), "all"], folder)
    archive.unlink()
    (top,) = (
        [folder / "all/usr/share/gocode/src" / imported] if imported else folder.glob("all/usr/share/cargo/registry/*")
    )
    for path in top.iterdir():
        if path.name not in _PACKED:
            path.rename(folder / path.name)
    shutil.rmtree(folder / "all")


def _lists(folder: Path, suite: str) -> None:
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    archive = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split()[
        0
    ]  # this machine's own
    (folder / "sources.list").write_text(f"deb [signed-by={key}] {archive} {suite} main\n")
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    _run(["apt-get", "-qq", *_options(folder), "update"], folder)


def _options(folder: Path) -> list[str]:
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list", "Dir::Etc::SourceParts": os.devnull,
        "Dir::State::Lists": folder / "lists", "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
