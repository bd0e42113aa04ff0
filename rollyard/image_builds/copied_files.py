"""Files that COPY and ADD take from a folder: the build's context, or the root of another stage.

No name leads out of the folder: symbolic links are resolved as if the folder were the root file system.
"""

from __future__ import annotations

import errno
import hashlib
import json
import lzma
import os
import posixpath
import shlex
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.image_builds.copied_mode import Mode
from rollyard.image_builds.file_patterns import IgnoreRules, pattern
from rollyard.image_builds.tree_changes import add_file
from rollyard.images.archive_member import ArchiveMember
from rollyard.images.layer_stack import LayerStack

MOST_UNPACKED = 16 << 30
"""Greatest size of what ADD takes from an archive. A small file may name any size."""
_MAGIC = ("*", "?", "[")


class NoSuchFile(Exception):
    """A name that matches nothing. `str()` is a sentence."""


@dataclass(frozen=True)
class CopySource:
    """One file or folder to copy."""

    name: str
    """Its last part; empty for the folder as a whole."""
    is_folder: bool
    files: tuple[tuple[str, str], ...]
    """(path below the source, path on this machine). A file has the one path ''."""

    def fingerprint(self) -> list[object]:
        """Return what the copy depends on: names, contents, modes."""
        return [self.name, self.is_folder, [[below, *_content(path)] for below, path in self.files]]


class CopyTree:
    """A folder of this machine, or an image, that files are copied from."""

    def __init__(self, files: LayerStack, rules: IgnoreRules | None = None, what: str = "the context") -> None:
        self._files = files
        self._rules = rules or IgnoreRules()
        self._what = what

    def find(self, text: str) -> list[CopySource]:
        """Return what a name or a pattern of names means. Raises NoSuchFile."""
        path = posixpath.normpath(f"/{text}").strip("/")
        names = [path] if not any(sign in path for sign in _MAGIC) else list(self._matching("", path.split("/")))
        names = [name for name in names if self._at(name) is not None and not self._ignored(name)]
        if not names:
            if path and self._at(path) is not None:
                raise NoSuchFile(f".dockerignore leaves {text} out: change its rules, or copy something else")
            raise NoSuchFile(f"{self._what} has no {text}: name a file or folder of it")
        return [self._source(name) for name in names]

    def _real(self, name: str) -> bytes:
        return os.fsencode(resolve_in(self._files, name))

    def _at(self, name: str) -> bytes | None:
        return self._files.find(self._real(name))

    def _ignored(self, name: str) -> bool:
        """Whether nothing of it can be copied."""
        if not name or not self._rules.ignores(name):
            return False
        return not (self._rules.has_exceptions and self._files.folders(self._real(name)))

    def _matching(self, above: str, parts: Sequence[str]) -> Iterator[str]:
        if not parts:
            yield above
            return
        expression = pattern(parts[0])
        for name in map(os.fsdecode, self._files.names(self._real(above))):
            if expression.fullmatch(name):
                yield from self._matching(f"{above}/{name}" if above else name, parts[1:])

    def _source(self, name: str) -> CopySource:
        real = self._real(name)
        if self._files.folders(real):
            return CopySource(posixpath.basename(name), True, tuple(self._below(real, name, "")))
        return CopySource(posixpath.basename(name), False, (("", os.fsdecode(self._files.find(real) or b"")),))

    def _below(self, folder: bytes, name: str, below: str) -> Iterator[tuple[str, str]]:
        for one in self._files.names(folder):
            real, shown = folder + b"/" + one if folder else one, os.fsdecode(one)
            path, place = f"{name}/{shown}" if name else shown, self._files.find(real)
            is_folder = bool(self._files.folders(real))
            ignored = self._rules.ignores(path)
            if not ignored and place is not None:
                yield f"{below}{shown}", os.fsdecode(place)
            if is_folder and (not ignored or self._rules.has_exceptions):
                yield from self._below(real, path, f"{below}{shown}/")


def host_tree(name: str, context: Path, folders: Sequence[Path]) -> tuple[CopyTree, list[str]]:
    """Return the folder that has a file of this machine, and the file's name below it. A relative name is below the context.
    Raises NoSuchFile if the file may not be read."""
    whole = Path(os.path.normpath(context / name))
    for folder in (context, *folders):
        for path in (whole, Path(os.path.realpath(whole.parent), whole.name)):
            if path.is_relative_to(folder):
                return CopyTree(LayerStack([folder]), what=f"the folder {folder}"), [str(path.relative_to(folder))]
    raise NoSuchFile(
        f"{whole} is outside of {context}, and the file may not copy it: if you trust the file, add "
        f"--allow-folder {shlex.quote(str(whole if whole.is_dir() else whole.parent))}"
    )


def resolve_in(files: LayerStack, path: str) -> str:
    """Return a path without symbolic links in it, which hold inside the image. Parts that do not exist stay."""
    try:
        return files.real_path(path)
    except OSError:
        raise NoSuchFile(f"{path} is a loop of symbolic links: copy something else") from None


def digest(sources: Sequence[CopySource]) -> str:
    """Return a digest of all that a copy depends on."""
    listed = json.dumps([source.fingerprint() for source in sources])
    return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()


def write_copy(
    archive: Path,
    sources: Sequence[CopySource],
    place: str,
    into: bool,
    *,
    mode: Mode | None,
    unpack: bool,
    named: bool = False,
) -> None:
    """Write the tar archive that puts `sources` into a root file system. `into`: `place` is a folder that gets the files.
    `unpack`: of a source that is a tar archive its content is taken. `named`: a folder is put into `place` with its name, as
    `cp -r` does; otherwise its content is. Raises OSError."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
        for source in sources:
            target = place if not into or (source.is_folder and not named) else posixpath.join(place, source.name)
            if unpack and not source.is_folder and _is_archive(source.files[0][1]):
                try:
                    _add_content(out, source.files[0][1], place)
                except (tarfile.TarError, ValueError, EOFError, zlib.error, lzma.LZMAError) as error:
                    whole = f"this archive is damaged, or cannot be unpacked safely ({error}): COPY the folder with its content"
                    raise OSError(errno.EINVAL, whole, source.name) from None
                continue
            if source.is_folder and not source.files:
                folder = tarfile.TarInfo(target or ".")
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                out.addfile(folder)
            for below, path in source.files:
                add_file(out, path, posixpath.join(target, below) if below else target, mode)


def _is_archive(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with tarfile.open(path, tarinfo=ArchiveMember):
            return True
    except (OSError, tarfile.TarError):
        return False


def _add_content(out: tarfile.TarFile, path: str, place: str) -> None:
    left = MOST_UNPACKED
    with tarfile.open(path, tarinfo=ArchiveMember) as inner:
        for member in inner:
            left -= tarfile.BLOCKSIZE + member.size
            if left < 0:
                whole = f"its content is more than {MOST_UNPACKED >> 30} GiB: unpack it yourself, and COPY the folder:"
                raise OSError(errno.EFBIG, whole, path)
            if member.ischr() or member.isblk() or member.isfifo():
                continue
            member.name = posixpath.join(place, posixpath.normpath(f"/{member.name}").lstrip("/"))
            if member.islnk():
                member.linkname = posixpath.join(place, posixpath.normpath(f"/{member.linkname}").lstrip("/"))
            member.pax_headers = {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            out.addfile(member, inner.extractfile(member) if member.isreg() else None)


def _content(path: str) -> tuple[str, int, str]:
    info = os.lstat(path)
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        return "link", 0, os.readlink(path)
    if stat.S_ISDIR(info.st_mode):
        return "folder", mode, ""
    if not stat.S_ISREG(info.st_mode):
        return "other", 0, ""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return "file", mode, hashlib.file_digest(file, "sha256").hexdigest()
