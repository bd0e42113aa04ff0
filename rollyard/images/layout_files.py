"""Files of an image in an OCI layout (a folder), an OCI archive or an archive of `docker save` (tar files)."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from rollyard.core.regular_file import open_regular
from rollyard.images.archive_member import ArchiveMember, RefusedMember
from rollyard.images.oci_manifest import BadManifest

_MOST_JSON = 8 << 20
_MOST_MEMBERS = 50_000
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
            return open_regular(self._folder / name)
        except (FileNotFoundError, NotADirectoryError):
            raise BadManifest(f"{self._folder} has no {name}") from None


class ArchiveFiles:
    """Members of a tar file, by their names."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._path = path
        self._archive = archive
        self._members = {os.path.normpath(member.name): member for member in islice(archive, _MOST_MEMBERS + 1)}
        if len(self._members) > _MOST_MEMBERS:
            raise BadManifest(f"{path} has more than {_MOST_MEMBERS} files, so it is not an archive of an image")

    def open(self, name: str) -> BinaryIO:
        member = self._members.get(os.path.normpath(name))
        if member is not None and member.issym():  # `docker save` of old releases links equal layers
            member = self._members.get(os.path.normpath(os.path.join(os.path.dirname(name), member.linkname)))
        elif member is not None and member.islnk():
            member = self._members.get(os.path.normpath(member.linkname))
        file = self._archive.extractfile(member) if member is not None and member.isreg() else None
        if file is None:
            raise BadManifest(f"{self._path} has no {name}")
        return file  # type: ignore[return-value]


@contextmanager
def layout_files(path: Path) -> Iterator[LayoutFiles]:
    """Open a layout. Raises BadManifest and OSError."""
    if path.is_dir():
        yield FolderFiles(path)
        return
    with open_regular(path) as file:
        start = file.read(2)
        if start in _COMPRESSED:
            raise BadManifest(f"{path} is compressed: unpack it with {_COMPRESSED[start]}, and name the tar archive")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=ArchiveMember) as archive:
                yield ArchiveFiles(path, archive)
        except RefusedMember as error:
            raise BadManifest(f"{path} cannot be read: {error}") from None
        except (EOFError, tarfile.TarError, ValueError):
            raise BadManifest(f"{path} is not a tar archive, or ends too early") from None
