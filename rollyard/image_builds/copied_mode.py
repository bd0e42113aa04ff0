"""The mode that `--chmod` gives to copied files: octal digits, or changes as of the program chmod. Pure."""

from __future__ import annotations

import re

_OCTAL = re.compile(r"[0-7]{3,4}")
_CHANGE = re.compile(r"([ugoa]*)([-+=])([rwxX]*)")
_BITS = {"r": 0o444, "w": 0o222, "x": 0o111}
_WHO = {"u": 0o700, "g": 0o070, "o": 0o007, "a": 0o777}


class BadMode(Exception):
    """Text that is not a mode. `str()` is a sentence."""


class Mode:
    def __init__(self, text: str) -> None:
        """Raises BadMode."""
        self._octal = int(text, 8) if _OCTAL.fullmatch(text) else None
        changes = [_CHANGE.fullmatch(part) for part in text.split(",")] if self._octal is None else []
        self._changes = [change.groups() for change in changes if change is not None]
        if len(self._changes) < len(changes):
            raise BadMode(
                f"--chmod={text} is not a mode: write octal digits, such as --chmod=755, or changes, such as u+rwX,go-w"
            )
        self.key = text if self._octal is None else self._octal
        """Value that a step with this mode depends on."""

    def of(self, mode: int, *, is_folder: bool) -> int:
        """Return the new mode of a file that has `mode`."""
        if self._octal is not None:
            return self._octal
        for who, sign, rights in self._changes:
            reached = 0
            for one in who or "a":
                reached |= _WHO[one]
            bits = 0
            for right in rights:
                if right != "X" or is_folder or mode & 0o111:
                    bits |= _BITS[right.lower()]
            mode = (
                mode & ~(reached & bits) if sign == "-" else (mode & ~reached if sign == "=" else mode) | reached & bits
            )
        return mode
