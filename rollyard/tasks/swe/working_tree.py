"""The working tree that an agent left, as a snapshot of the repository's folder shows it.

Nothing of the sandbox's git is asked, and no program of the sandbox runs. So it makes no difference what the agent did with
git, its settings, or the programs of the image. An agent chose the names and contents in a snapshot, and nothing else in it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field

import zstandard

from rollyard.sandbox.snapshot import SnapshotPart
from rollyard.sandbox_agent import incremental_tar
from rollyard.sandbox_agent.incremental_tar import ChangedFile
from rollyard.sandbox_agent.restored_files import exact_reader

MOST_BYTES = 64 << 20
"""Greatest length of a snapshot before its compression."""
LARGEST_FILE_BYTES = 4 << 20
"""Greatest length of a file that counts."""


@dataclass(frozen=True)
class TreeFile:
    """A file as git's trees have it: a link, or content that may be executable."""

    data: bytes
    """Content of a file; target of a link."""
    link: bool = False
    executable: bool = False

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass
class WorkingTree:
    """Folders that have changed, with the names in them, and files that have changed."""

    folders: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    """Path in the repository -> name -> mark of the name. The repository itself is the empty path."""
    files: dict[bytes, TreeFile] = field(default_factory=dict)

    @property
    def gone(self) -> bool:
        """Whether there is no folder in the repository's place."""
        return b"" not in self.folders


def part_of(repository: str, names: frozenset[str], endings: tuple[str, ...], marks: frozenset[str]) -> SnapshotPart:
    return SnapshotPart(repository, sorted(names), endings, sorted(marks), LARGEST_FILE_BYTES)


def read_tree(snapshot: bytes) -> WorkingTree:
    """Read a compressed snapshot. Raises ValueError for one that no sandbox agent has written."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(snapshot) as stream:
            data = stream.read(MOST_BYTES + (1 << 20))
        return _read(exact_reader(io.BytesIO(data).read))
    except (zstandard.ZstdError, incremental_tar.BrokenChanges, KeyError) as error:
        raise ValueError(f"the snapshot of the repository is damaged: {error}") from None


def _read(take: Callable[[int], bytes]) -> WorkingTree:
    tree = WorkingTree()
    while (entry := incremental_tar.decoded(take)) is not None:
        path = entry.path
        if entry.kind == incremental_tar.FOLDER:
            tree.folders[path] = {name: mark for mark, name in entry.names}
        elif entry.kind == incremental_tar.SYMLINK:
            tree.files[path] = TreeFile(entry.link, link=True)
        elif entry.kind == incremental_tar.HARD_LINK:
            tree.files[path] = tree.files[entry.link]
        elif entry.kind != incremental_tar.FIFO:
            tree.files[path] = TreeFile(_content(entry, take), executable=bool(entry.mode & 0o100))
    return tree


def _content(entry: ChangedFile, take: Callable[[int], bytes]) -> bytes:
    if entry.size > LARGEST_FILE_BYTES:
        raise ValueError("a file in the snapshot is too large")
    data = bytearray(entry.size)
    for offset, length in entry.extents:
        data[offset : offset + length] = take(length)
    take(-entry.data_bytes % incremental_tar.BLOCK)
    return bytes(data)
