"""Files of an image in an OCI layout (a folder), an OCI archive or an archive of `docker save` (tar files)."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from rollyard.node.images.oci_manifest import BadManifest

_MOST_JSON = 8 << 20
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"\xfd7": "unxz", b"BZ": "bunzip2", b"\x28\xb5": "unzstd"}


class LayoutFiles(Protocol):
    def open(self, name: str) -> BinaryIO:
        """Open a file of the layout. Raises BadManifest if it has none of this name, and OSError."""


def read_json_file(files: LayoutFiles, name: str) -> bytes:
    """Return a small file. Raises BadManifest and OSError."""
    with files.open(name) as file:
        data = file.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise BadManifest(f"its {name} is longer than {_MOST_JSON >> 20} MiB")
    return data


class FolderFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> BinaryIO:
        try:
            return open(self._folder / name, "rb")
        except (FileNotFoundError, NotADirectoryError):
            raise BadManifest(f"{self._folder} has no {name}") from None


class ArchiveFiles:
    """Members of a tar file, by their names."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._path = path
        self._archive = archive
        self._members = {os.path.normpath(member.name): member for member in archive}

    def open(self, name: str) -> BinaryIO:
        member = self._members.get(os.path.normpath(name))
        if member is not None and member.issym():  # `docker save` of old releases links equal layers
            member = self._members.get(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))
        file = self._archive.extractfile(member) if member is not None and not member.issym() else None
        if file is None:
            raise BadManifest(f"{self._path} has no {name}")
        return file  # type: ignore[return-value]


@contextmanager
def layout_files(path: Path) -> Iterator[LayoutFiles]:
    """Open a layout. Raises BadManifest and OSError."""
    if path.is_dir():
        yield FolderFiles(path)
        return
    with open(path, "rb") as file:
        start = file.read(2)
        if start in _COMPRESSED:
            raise BadManifest(f"{path} is compressed: unpack it with {_COMPRESSED[start]}, and name the tar archive")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield ArchiveFiles(path, archive)
        except (tarfile.TarError, EOFError):
            raise BadManifest(f"{path} is no tar archive, or ends too early") from None
