"""The difference of an agent's working tree to the tree of the image, in files that count, and its archive. Pure.

A difference has files and no folders, as git's trees do: no empty folder, no times, no modes but that of a program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rollyard.sandbox_agent import incremental_tar
from rollyard.sandbox_agent.incremental_tar import ChangedFile
from rollyard.tasks.swe.working_tree import TreeFile, WorkingTree

FOLDER, FILE, LINK, OTHER = "d", "f", "l", "o"
Reason = Callable[[bytes, TreeFile | None], str | None]
"""Tells why a changed path does not count; None: it counts. Without a file the path is deleted."""


@dataclass(frozen=True)
class BaseEntry:
    """File or folder of the image's tree."""

    kind: str
    mode: int
    digest: str
    """SHA-256 of a link, or of a file that was asked for; else `-`."""


BaseTree = Mapping[bytes, BaseEntry]
"""Path in the repository -> entry."""


@dataclass
class TreeDifference:
    written: dict[bytes, TreeFile] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    left_out: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Reason -> changed paths that do not count."""
    of_base: set[bytes] = field(default_factory=set)
    """Those of them that the base has."""

    @property
    def empty(self) -> bool:
        return not self.written and not self.deleted


def parse_listing(records: bytes) -> dict[bytes, BaseEntry]:
    """Read the output of `sandbox_agent.tree_listing`. Raises ValueError."""
    tree = {}
    for record in records.split(b"\0")[:-1]:
        kind, mode, digest, path = record.split(b" ", 3)
        tree[path] = BaseEntry(kind.decode(), int(mode, 8), digest.decode())
    return tree


def difference(tree: WorkingTree, base: BaseTree, reason: Reason) -> TreeDifference:
    """Return what of the tree differs from the base and counts."""
    found, children = TreeDifference(), _children(base)
    deleted = [
        below
        for folder, names in tree.folders.items()
        for child in children.get(folder, ())
        if _name(child) not in names or _is_replaced(child, names[_name(child)], tree, base)
        for below in _files_at(child, base, children)
        if below not in tree.files
    ]
    for path in deleted:
        _sort_in(found, path, None, reason)
    for path, file in tree.files.items():
        if not _is_same(file, base.get(path)):
            _sort_in(found, path, file, reason)
    found.of_base = {path for paths in found.left_out.values() for path in paths if path in base}
    _leave_out_conflicts(found, base, children)
    return found


def _sort_in(found: TreeDifference, path: bytes, file: TreeFile | None, reason: Reason) -> None:
    if why := reason(path, file):
        found.left_out[why].append(path)
    elif file is None:
        found.deleted.add(path)
    else:
        found.written[path] = file


def _is_replaced(child: bytes, mark: bytes, tree: WorkingTree, base: BaseTree) -> bool:
    """Whether something else has the name of a file or folder of the base: a folder, a file, or a fifo, which is no file."""
    if mark == incremental_tar.WRITTEN:
        return base[child].kind == FOLDER or child not in tree.files
    return base[child].kind != FOLDER and child in tree.folders


def _is_same(file: TreeFile, base: BaseEntry | None) -> bool:
    if base is None or base.kind != (LINK if file.link else FILE):
        return False
    return base.digest == file.digest and (file.link or file.executable == bool(base.mode & 0o100))


def _leave_out_conflicts(found: TreeDifference, base: BaseTree, children: Mapping[bytes, list[bytes]]) -> None:
    """Leave out each file whose place is taken by a file of the base that stays."""
    for path in list(found.written):
        is_folder = path in base and base[path].kind == FOLDER
        staying = (
            (below for below in _files_at(path, base, children) if below not in found.deleted) if is_folder else ()
        )
        above = (base[folder].kind for folder in _above(path) if folder in base and folder not in found.deleted)
        if any(staying) or any(kind != FOLDER for kind in above):
            del found.written[path]
            found.left_out["conflict"].append(path)


def archive_of(found: TreeDifference, base: BaseTree, now_ns: int, prefix: bytes) -> bytes:
    """Return the difference as an archive that `Sandbox.restore` applies to the base. `prefix`: the repository's path."""
    children = _children(base)
    gone = _empty_folders(found, base, children)
    listed: dict[bytes, dict[bytes, bytes]] = {}
    for path in (*found.written, *found.deleted, *gone):
        for folder in _above(path):
            if folder not in gone and folder not in listed:
                listed[folder] = {
                    _name(child): incremental_tar.KEPT
                    for child in children.get(folder, ())
                    if child not in found.deleted and child not in gone
                }
    for path in (*found.written, *listed):
        if path and (parent := _parent(path)) in listed:
            mark = incremental_tar.WRITTEN if path in found.written else incremental_tar.FOLDER_WRITTEN
            listed[parent][_name(path)] = mark
    pieces: list[bytes] = []
    for folder in sorted(listed):
        mode = base[folder].mode if folder in base and base[folder].kind == FOLDER else 0o755
        entry = ChangedFile(_joined(prefix, folder), incremental_tar.FOLDER, mode, now_ns)
        entry.names = [(mark, name) for name, mark in sorted(listed[folder].items())]
        pieces.append(incremental_tar.encoded(entry))
    for path, file in sorted(found.written.items()):
        pieces += _encoded_file(_joined(prefix, path), file, now_ns)
    return b"".join([*pieces, incremental_tar.END])


def _encoded_file(path: bytes, file: TreeFile, now_ns: int) -> Iterable[bytes]:
    kind = incremental_tar.SYMLINK if file.link else incremental_tar.FILE
    entry = ChangedFile(path, kind, 0o755 if file.executable else 0o644, now_ns)
    if file.link:
        entry.link = file.data
        return [incremental_tar.encoded(entry)]
    entry.size, entry.extents = len(file.data), ((0, len(file.data)),)
    return [incremental_tar.encoded(entry), incremental_tar.padded(file.data)]


def _empty_folders(found: TreeDifference, base: BaseTree, children: Mapping[bytes, list[bytes]]) -> set[bytes]:
    """Return the folders of the base that have lost their last file."""
    gone: set[bytes] = set()
    kept = {folder for path in found.written for folder in _above(path)} | {b""}
    emptied = {folder for path in found.deleted for folder in _above(path)} - kept
    for folder in sorted(emptied, key=len, reverse=True):
        if all(child in found.deleted or child in gone for child in children.get(folder, ())):
            gone.add(folder)
    return gone


def _children(base: BaseTree) -> dict[bytes, list[bytes]]:
    children: dict[bytes, list[bytes]] = defaultdict(list)
    for path in base:
        children[_parent(path)].append(path)
    return children


def _files_at(path: bytes, base: BaseTree, children: Mapping[bytes, list[bytes]]) -> Iterable[bytes]:
    """Yield the path if it is a file, or all files below it."""
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if base[here].kind == FOLDER:
            waiting += children.get(here, ())
        else:
            yield here


def _above(path: bytes) -> Iterable[bytes]:
    while path:
        path = _parent(path)
        yield path


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]


def _joined(prefix: bytes, path: bytes) -> bytes:
    return b"/".join(part for part in (prefix.strip(b"/"), path) if part)
