"""Changes of an archive that have no effect when it is applied: `RestoreRules` of the owner."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollyard.sandbox_agent.settings import Settings

OWN = "/opt/rollyard"


class LeftOut:
    """Made before the first change, because it looks at the programs of the image."""

    def __init__(self, rules: Mapping[str, str], settings: Settings) -> None:
        self._left_out = re.compile(os.fsencode(rules["left_out"]), re.DOTALL)
        self._image_first = re.compile(os.fsencode(rules["image_first"]), re.DOTALL)
        self._folders: set[bytes] = set()
        """Folders of programs, inside of which the image comes first. One in the folder of the task's own work is none."""
        self._programs: set[bytes] = set()
        self._gone: list[bytes] = []
        """Folders of the archive in whose place the image has something else, each with a slash at its end."""
        work = os.fsencode(settings.workdir).rstrip(b"/") + b"/"
        for folder in settings.env["PATH"].split(":"):
            path = os.path.realpath(os.fsencode(folder))
            if folder.startswith("/") and not folder.startswith(OWN) and (work == b"/" or not path.startswith(work)):
                self._folders.add(path)
                self._programs.update(_names(path))

    def leaves_out(self, path: bytes, there: bool, *, folder: bool = False) -> bool:
        """Whether a file, or a folder, of the archive is left out. `there`: whether the image has a file at its path."""
        if self._left_out.fullmatch(path) or any(path.startswith(gone) for gone in self._gone):
            return True
        of_programs = os.path.dirname(path) in self._folders
        if there and (of_programs or self._image_first.fullmatch(path)):
            if folder:
                self._gone.append(path + b"/")
            return True
        return not folder and of_programs and os.path.basename(path) in self._programs

    def keeps(self, path: bytes) -> bool:
        """Whether a file of the image stays although the archive has it not."""
        inside = os.path.dirname(path) in self._folders or path in self._folders
        return inside or bool(self._left_out.fullmatch(path) or self._image_first.fullmatch(path))


def _names(folder: bytes) -> list[bytes]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
