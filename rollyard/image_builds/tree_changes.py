"""Changes of a folder by a step, and the layer that holds these changes."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from rollyard.core.errors import ImageBuildFailed
from rollyard.image_builds.copied_mode import Mode

THREADS = 4
LEVEL = 3
KERNEL_FOLDERS = ("dev", "proc", "sys")
"""Folders whose content the kernel shows in a container. It never belongs to a layer."""
_WHITEOUT = ".wh."
MOST_DEPTH = 200
"""Greatest depth of folders, as for all images."""

Signature = tuple[int, ...]
"""Values that stay equal as long as nobody changes a file. For a folder the times are left out."""
Signatures = Mapping[str, Signature]
"""Path below the folder -> signature."""


@dataclass(frozen=True)
class Layer:
    """A tar archive in zstd, of changes."""

    digest: str
    """sha256 of the file."""
    diff_id: str
    """sha256 of the tar archive in it."""
    size: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_signatures(root: Path, *, foreign: bool = False) -> Signatures:
    """Return all files of a folder. Files that their owner cannot read become readable: in an image they are so anyway.
    `foreign`: the folder is not ours, and stays as it is."""
    return dict(_walk(os.fspath(root), "", foreign))


def _walk(folder: str, above: str, foreign: bool) -> Iterator[tuple[str, Signature]]:
    if above.count("/") > MOST_DEPTH:
        raise ImageBuildFailed(
            f"{above[:40]}… has folders nested more than {MOST_DEPTH} deep, which no image may have: delete them in the step "
            "that makes them"
        )
    with os.scandir(folder) as listed:
        found = sorted(listed, key=lambda one: one.name)
    for one in found:
        path, info = f"{above}{one.name}", one.stat(follow_symlinks=False)
        mode = info.st_mode
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600 if stat.S_ISREG(mode) else 0
        if mode & wanted != wanted and not foreign:
            os.chmod(one.path, stat.S_IMODE(mode) | wanted)
            info = os.lstat(one.path)
        if stat.S_ISDIR(info.st_mode):
            yield path, (info.st_mode, info.st_ino)
            if above or one.name not in KERNEL_FOLDERS:
                yield from _walk(one.path, f"{path}/", foreign)
        else:
            yield path, (info.st_mode, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def changes(before: Signatures, after: Signatures, passed_over: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the new or changed paths, and the deleted ones, without those in `passed_over` and what is below them. Of a
    deleted folder only the folder is returned."""

    def counts(path: str) -> bool:
        return not any(path == one or path.startswith(f"{one}/") for one in passed_over)

    changed = [path for path, signature in after.items() if before.get(path) != signature and counts(path)]
    gone = [path for path in before if path not in after and counts(path)]
    return changed, [path for path in gone if _parent_stays(path, after)]


def _parent_stays(path: str, after: Signatures) -> bool:
    above = path.rpartition("/")[0]
    return not above or (above in after and stat.S_ISDIR(after[above][0]))


def write_layer(changed: Mapping[str, str], deleted: Sequence[str], file: BinaryIO) -> Layer:
    """Write a layer. All its files belong to root. `changed`: path -> where the file lies on this machine."""
    packed = _Hashed(file)
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=THREADS)
    with compressor.stream_writer(cast(BinaryIO, packed), closefd=False) as writer:
        plain = _Hashed(writer)
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in deleted:
                above, _, name = path.rpartition("/")
                archive.addfile(tarfile.TarInfo(f"{above}/{_WHITEOUT}{name}" if above else f"{_WHITEOUT}{name}"))
            for path, source in changed.items():
                add_file(archive, source, path)
    return Layer(packed.digest, plain.digest, packed.length)


def add_file(archive: tarfile.TarFile, source: str, name: str, mode: Mode | None = None) -> None:
    """Add a file, a link or a folder without its content. Sockets and devices are left out."""
    info = archive.gettarinfo(source, name)
    if info is None or info.ischr() or info.isblk():
        return
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    if mode is not None and not info.issym():
        info.mode = mode.of(info.mode, is_folder=info.isdir())
    if not info.isreg():
        archive.addfile(info)
        return
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        archive.addfile(info, file)


class _Hashed(io.RawIOBase):
    """Passes bytes on, and hashes them."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self._hash = hashlib.sha256()
        self.length = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def tell(self) -> int:
        return self.length

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._below.write(data)
        self.length += len(data)
        return len(data)
