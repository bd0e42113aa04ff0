"""Rollyard's Python packages in one archive file. Each node unpacks the archive once.

If hundreds of jobs import thousands of files from a network file system at the same time, the file servers are busy for
minutes. The archive contains Rollyard, the installed plug-ins of the node agents, and the dependencies of both. It
contains no packages of a model server.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path

from packaging.requirements import Requirement

import rollyard
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.store.journal_mode import LOCAL, file_system_of

UNPACK = Path(__file__).with_name("unpack_python.sh")
PLUG_INS = ("rollyard.tasks", "rollyard.tool_parsers")
LAST_FILE = ".last"
"""Name of the last file in the archive. `tar` does not notice that an archive ends too early."""
KEPT_ARCHIVES = 3
"""Number of archives that are kept, including the newest. Jobs that still wait in the queue may need an earlier one."""


class PythonArchive:
    """Makes the archive in a folder that the nodes can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive: Path | None = None

    def archive(self, template: AllocationTemplate) -> Path | None:
        """Return the path of the archive for jobs of this template; None if the jobs need no archive. Blocks at the
        first call."""
        match template.unpack_python:
            case "Never":
                return None
            case "Auto" if file_system_of(Path(sysconfig.get_path("purelib"))) in LOCAL:
                return None
            case _:
                self._archive = self._archive or self._folder / f"{_fingerprint()}.tar"
                return self._archive

    def pack(self, template: AllocationTemplate) -> None:
        """Make the archive for jobs of this template if it is needed and does not exist. Blocks. Raises OSError."""
        archive = self.archive(template)
        if archive is None or archive.exists():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = archive.with_suffix(f".{secrets.token_hex(4)}")
        try:
            with tarfile.open(part, "w") as tar:
                for source, name in _files():
                    tar.add(source, name, recursive=False)
                tar.addfile(tarfile.TarInfo(LAST_FILE))
            part.rename(archive)
        finally:
            part.unlink(missing_ok=True)
        old = sorted(self._folder.glob("*.tar"), key=lambda path: path.stat().st_mtime)[:-KEPT_ARCHIVES]
        for path in old:
            path.unlink(missing_ok=True)


def _files() -> Iterator[tuple[Path, str]]:
    """Yield each file with its path in the archive, which is its path below site-packages.

    Rollyard's files come from the folder of the running package.
    """
    for found in _distributions():
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and path.is_file():
                yield path, str(file)
    yield from _own_packages()


def _own_packages() -> Iterator[tuple[Path, str]]:
    root = Path(rollyard.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, f"rollyard/{path.relative_to(root)}"


def _distributions() -> list[Distribution]:
    """Return the plug-ins of the node agents, their dependencies, and the dependencies of Rollyard, sorted by name."""
    plug_ins = {e.dist.name for group in PLUG_INS for e in entry_points(group=group) if e.dist is not None}
    found: dict[str, Distribution] = {}
    _with_dependencies({"rollyard", *plug_ins}, found)
    return [found[name] for name in sorted(found) if name != "rollyard"]


def _with_dependencies(names: Iterable[str], found: dict[str, Distribution]) -> None:
    for name in names:
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in found:
            continue
        try:
            found[plain] = distribution(plain)
        except PackageNotFoundError:
            continue  # an optional package, or one for another platform
        needs = map(Requirement, found[plain].requires or ())
        _with_dependencies(
            [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})], found
        )


def _fingerprint() -> str:
    """Return a digest that changes with Python's version, with each package, and with each of Rollyard's own files."""
    # RECORD has the hash of each file. So the digest also changes if a package is built again under the same version.
    words = [sys.version, *(f"{d.name} {d.version} {d.read_text('RECORD')}" for d in _distributions())]
    words += [f"{name} {os.stat(path).st_mtime_ns}" for path, name in _own_packages()]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
