"""Changes of an archive that have no effect when it is applied: `RestoreRules` of the owner."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollyard.sandbox_agent.settings import Settings

OWN = "/opt/rollyard"
_USUAL = "/usr/local/bin:/usr/bin:/bin"
"""Folders of programs that count as part of each PATH."""
MOST_NAMED = 1000
_MODULE = re.compile(
    rb"(/lib(?:32|64)?/python3[^/]*)/(?!(?:site|dist)-packages(?:/|$))([^/.]+)[^/]*(?:/.*)?", re.DOTALL
)
"""A module of Python's library, below the prefix of an installation: the folder of the library, and the module's name."""


class LeftOut:
    """Made before the first change, because it looks at the programs of the image.

    A prefix is a folder of the image in which Python is installed: /usr, /opt/conda, a virtual environment. It is looked at
    when the archive first names something in it, and so before anything in it changes.
    """

    def __init__(self, rules: Mapping[str, str], settings: Settings) -> None:
        self._left_out = re.compile(os.fsencode(rules["left_out"]), re.DOTALL)
        self._image_first = re.compile(os.fsencode(rules["image_first"]), re.DOTALL)
        self._of_prefix = re.compile(os.fsencode(rules["of_prefix"]), re.DOTALL)
        self._named = re.compile(os.fsencode(rules["named"]), re.DOTALL)
        self.named: list[bytes] = []
        """Paths of files that the owner wants to know."""
        self._own = {os.fsencode(name) for name in rules["programs"].split()}
        self._folders: set[bytes] = set()
        """Folders of programs, inside of which the image comes first. One in the folder of the task's own work is none."""
        self._work_folders: set[bytes] = set()
        """Those in the folder of the task's own work."""
        self._programs = set(self._own)
        self._gone: list[bytes] = []
        """Folders of the archive in whose place the image has something else, each with a slash at its end."""
        self._prefixes: dict[bytes, bool] = {}
        self._libraries: dict[bytes, set[bytes]] = {}
        """Folder of a library of Python -> names of its modules."""
        self._work = os.fsencode(settings.workdir).rstrip(b"/") + b"/"
        for folder in f"{settings.env['PATH']}:{_USUAL}".split(":"):
            path = os.path.realpath(os.fsencode(folder))
            if not folder.startswith("/") or folder.startswith(OWN):
                continue
            if self._in_work(path):
                self._work_folders.add(path)
            else:
                self._folders.add(path)
                self._programs.update(_names(path))
        self._above = {above for folder in self._folders for above in _above(folder + b"/")}

    def leaves_out(self, path: bytes, there: bool, *, folder: bool = False) -> bool:
        """Whether a file, or a folder, of the archive is left out. `there`: whether the image has a file at its path."""
        first = self._is_first(path)
        if self._left_out.fullmatch(path) or any(path.startswith(gone) for gone in self._gone):
            return True
        if not folder and path in self._above:
            return True
        of_programs = os.path.dirname(path) in self._folders
        if there and (of_programs or first):
            if folder:
                self._gone.append(path + b"/")
            return True
        if not folder and there and self._has_prefix(path):
            return True
        return self._is_false(path, folder)

    def note(self, path: bytes) -> None:
        """Keep the path of a file that is written, if the owner wants to know it."""
        if len(self.named) < MOST_NAMED and self._named.fullmatch(path):
            self.named.append(path)

    def keeps(self, path: bytes) -> bool:
        """Whether a file of the image stays although the archive has it not."""
        first = self._is_first(path)
        inside = os.path.dirname(path) in self._folders or path in self._above
        return inside or first or bool(self._left_out.fullmatch(path)) or self._has_prefix(path)

    def _is_first(self, path: bytes) -> bool:
        if self._image_first.fullmatch(path):
            return True
        return any(
            self._image_first.fullmatch(below) and (_MODULE.fullmatch(below) or not self._in_work(path))
            for _, below in self._in_prefixes(path)
        )

    def _is_false(self, path: bytes, folder: bool) -> bool:
        """Whether something new would take the place of a program or a module of the image."""
        above, name = os.path.split(path)
        if not folder and (above in self._folders or above in self._work_folders) and name in self._own:
            return True
        if not folder and above in self._folders and name in self._programs:
            return True
        for prefix, below in self._in_prefixes(path):
            module = _MODULE.fullmatch(below)
            if module is not None and module[2] in self._modules(prefix + module[1]):
                return True
            false_program = below == b"/bin/" + name and name in self._programs
            if not folder and not self._in_work(path) and (false_program or self._of_prefix.fullmatch(below)):
                return True
        return False

    def _in_work(self, path: bytes) -> bool:
        return self._work != b"/" and path.startswith(self._work)

    def _in_prefixes(self, path: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the prefixes above a path, each with the rest of the path."""
        for above in _above(path):
            if above not in self._prefixes:
                self._prefixes[above] = os.path.isdir(above + b"/") and _is_prefix(above)
                for library in _libraries(above) if self._prefixes[above] else ():
                    self._modules(library)
            if self._prefixes[above]:
                yield above, path[len(above) :]

    def _modules(self, library: bytes) -> set[bytes]:
        if library not in self._libraries:
            self._libraries[library] = {name.partition(b".")[0] for name in _names(library)}
        return self._libraries[library]

    def _has_prefix(self, path: bytes) -> bool:
        """Whether a folder outside of the task's own work has a prefix in it, or is one."""
        if os.path.islink(path) or not os.path.isdir(path) or self._in_work(path + b"/"):
            return False
        return any(_is_prefix(folder) for folder, _, _ in os.walk(path))


def _above(path: bytes) -> list[bytes]:
    """Return the folders above a path, the first one as an empty name."""
    return [path[:end] for end, byte in enumerate(path) if byte == ord("/")]


def _libraries(prefix: bytes) -> list[bytes]:
    return [
        b"/".join((prefix, folder, name))
        for folder in (b"lib", b"lib64", b"lib32")
        for name in _names(prefix + b"/" + folder)
        if name.startswith(b"python3")
    ]


def _is_prefix(folder: bytes) -> bool:
    return any(os.path.lexists(folder + name) for name in (b"/bin/python3", b"/bin/python")) or bool(_libraries(folder))


def _names(folder: bytes) -> list[bytes]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
