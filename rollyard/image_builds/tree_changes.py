"""Changes of an image by a step, and the layer that holds these changes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from rollyard.core.errors import ImageBuildFailed
from rollyard.image_builds.copied_mode import Mode
from rollyard.images.layer_stack import LayerStack

THREADS = 4
LEVEL = 3
KERNEL_FOLDERS = ("dev", "proc", "sys")
"""Folders whose content the kernel shows in a container. It never belongs to a layer."""
_WHITEOUT = ".wh."
MOST_DEPTH = 200
"""Greatest depth of folders, as for all images."""

_TAR_LAYER = "application/vnd.oci.image.layer.v1.tar"
ZSTD_LAYER = f"{_TAR_LAYER}+zstd"
_OPAQUE = ("user.overlay.opaque", "user.fuseoverlayfs.opaque")
"""Attributes of a folder that hides all that the layers below have at its place: of the kernel and of fuse-overlayfs."""
_OPAQUE_FILE = ".wh..wh..opq"
"""A file that says the same, where fuse-overlayfs may set no attribute."""
_COMPARED = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A tar archive of changes, in zstd unless an image that was not built here has it otherwise."""

    digest: str
    """sha256 of the file."""
    diff_id: str
    """sha256 of the tar archive in it."""
    size: int
    media_type: str = ZSTD_LAYER

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def layer_of_file(file: Path, digest: str, diff_id: str) -> Layer:
    """Return a layer of an image that was not built here. Blocks. Raises OSError."""
    with open(file, "rb") as opened:
        start = opened.read(4)
    packed = "+gzip" if start.startswith(b"\x1f\x8b") else "+zstd" if start == b"\x28\xb5\x2f\xfd" else ""
    return Layer(digest, diff_id, file.stat().st_size, f"{_TAR_LAYER}{packed}")


def read_signatures(root: Path) -> dict[str, tuple[int, ...]]:
    """Return path -> values that stay equal as long as nobody changes the file, of all files of a folder. For a folder the
    times are left out."""
    found = {}
    for path, place in LayerStack([root]).walk():
        info, shown = os.lstat(place), os.fsdecode(path)
        _check_depth(shown)
        times = () if stat.S_ISDIR(info.st_mode) else (info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        found[shown] = (info.st_mode, info.st_ino, *times)
    return found


def read_changes(changed: Path, files: LayerStack, passed_over: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Return what an overlay has written into the folder `changed` over `files`: new or changed paths, each with its place on
    this machine, and deleted paths, without those in `passed_over` and what is below them. Of a deleted folder only the
    folder is returned. Files that their owner cannot read become readable: in an image they are so anyway."""
    reader = _ChangeReader(files, passed_over)
    changed.chmod(0o755)
    reader.read(os.fspath(changed), "", hidden=False)
    return reader.changed, reader.deleted


class _ChangeReader:
    def __init__(self, files: LayerStack, passed_over: Sequence[str]) -> None:
        self._files = files
        self._passed_over = passed_over
        self.changed: dict[str, str] = {}
        self.deleted: list[str] = []

    def read(self, folder: str, above: str, hidden: bool) -> None:
        """`above`: path of the folder, with a slash at its end. `hidden`: whether the folder hides what is below it."""
        _check_depth(above)
        with os.scandir(folder) as listed:
            found = sorted(listed, key=lambda one: one.name)
        shown = {one.name.removeprefix(_WHITEOUT) for one in found}
        if hidden:
            below = (os.fsdecode(name) for name in self._files.names(os.fsencode(above.rstrip("/"))))
            self.deleted += [f"{above}{name}" for name in below if name not in shown]
        for one in found:
            path = f"{above}{one.name}"
            if path not in self._passed_over and one.name != _OPAQUE_FILE:
                self._one(one, path, hidden)

    def _one(self, one: os.DirEntry[str], path: str, hidden: bool) -> None:
        info, below = one.stat(follow_symlinks=False), self._files.find(os.fsencode(path))
        mode = info.st_mode
        if one.name.startswith(_WHITEOUT) or (stat.S_ISCHR(mode) and info.st_rdev == 0):
            path = f"{path[: -len(one.name)]}{one.name.removeprefix(_WHITEOUT)}"
            if path not in self._passed_over and self._files.find(os.fsencode(path)) is not None:
                self.deleted.append(path)
            return
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600 if stat.S_ISREG(mode) else 0
        if mode & wanted != wanted:
            os.chmod(one.path, stat.S_IMODE(mode) | wanted)
        if not stat.S_ISDIR(mode):
            if below is None or hidden or not _same(one.path, below):
                self.changed[path] = one.path
            return
        was_folder = below is not None and stat.S_ISDIR(os.lstat(below).st_mode)
        if (
            not was_folder
            or hidden
            or stat.S_IMODE(mode) | wanted != stat.S_IMODE(os.lstat(below or "").st_mode) | wanted
        ):
            self.changed[path] = one.path
        if "/" in path or path not in KERNEL_FOLDERS:
            self.read(one.path, f"{path}/", was_folder and (hidden or _is_opaque(one.path)))


def _is_opaque(folder: str) -> bool:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return True
    return os.path.lexists(f"{folder}/{_OPAQUE_FILE}")


def _same(new: str, old: bytes) -> bool:
    """Return whether a file was opened for writing, and is as before."""
    one, other = os.lstat(new), os.lstat(old)
    if stat.S_ISLNK(one.st_mode) and stat.S_ISLNK(other.st_mode):
        return os.fsencode(os.readlink(new)) == os.readlink(old)
    if not stat.S_ISREG(one.st_mode) or (one.st_mode, one.st_size, one.st_mtime_ns) != (
        other.st_mode,
        other.st_size,
        other.st_mtime_ns,
    ):
        return False
    with open(new, "rb") as first, open(old, "rb") as second:
        while (data := first.read(_COMPARED)) == second.read(_COMPARED):
            if not data:
                return True
    return False


def _check_depth(path: str) -> None:
    if path.count("/") > MOST_DEPTH:
        raise ImageBuildFailed(
            f"{path[:40]}… has folders nested more than {MOST_DEPTH} deep, which no image may have: delete them in the step "
            "that makes them"
        )


def write_layer(changed: Mapping[str, str], deleted: Sequence[str], file: BinaryIO) -> Layer:
    """Write a layer. All its files belong to root. `changed`: path -> where the file lies on this machine."""

    def write(plain: BinaryIO) -> None:
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in deleted:
                above, _, name = path.rpartition("/")
                archive.addfile(tarfile.TarInfo(f"{above}/{_WHITEOUT}{name}" if above else f"{_WHITEOUT}{name}"))
            for path, source in changed.items():
                add_file(archive, source, path)

    return _packed(file, write)


def pack_archive(archive: Path, file: BinaryIO) -> Layer:
    """Write a tar archive as a layer."""

    def write(plain: BinaryIO) -> None:
        with open(archive, "rb") as source:
            shutil.copyfileobj(source, plain, _COMPARED)

    return _packed(file, write)


def _packed(file: BinaryIO, write: Callable[[BinaryIO], None]) -> Layer:
    packed = _Hashed(file)
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=THREADS)
    with compressor.stream_writer(cast(BinaryIO, packed), closefd=False) as writer:
        plain = _Hashed(writer)
        write(cast(BinaryIO, plain))
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
