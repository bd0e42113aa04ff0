"""Entries of a tar archive that anybody may have written, for `tarfile`."""

from __future__ import annotations

import tarfile

_MOST_HEADER_BYTES = 1 << 20
_HEADERS = (b"L", b"K", b"x", b"g", b"X")
"""Types of entries that say something about the next ones."""


class RefusedMember(tarfile.ReadError):
    """`str()` says what the archive has, with "it" for the archive."""


class ArchiveMember(tarfile.TarInfo):
    """`tarfile` reads a header as a whole, however long it says to be. This class refuses it first, by RefusedMember."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MOST_HEADER_BYTES:
            raise RefusedMember(f"it has a header of more than {_MOST_HEADER_BYTES >> 20} MiB")
        if self.type == tarfile.GNUTYPE_SPARSE:  # the list of its parts may have any length too
            raise RefusedMember("it has a sparse file in GNU's format")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]
