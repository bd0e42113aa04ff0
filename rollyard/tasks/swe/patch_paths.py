"""The paths that a patch in the form of `git diff` names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_HEADER = re.compile(r"(?:---|\+\+\+) (?P<file>.+)|(?:rename|copy) (?:from|to) (?P<named>.+)")
_BOTH = re.compile(r'diff --git (?:"a/(?P<quoted>(?:[^"\\]|\\.)*)" .*|a/(?P<plain>.*) b/(?P=plain))')
"""The line of a file whose name does not change; of a renamed file if git puts its old name in quotes."""
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def patch_paths(patch: str) -> list[bytes]:
    """Return the paths of all files that the patch changes, makes, deletes or renames, each once."""
    return list(dict.fromkeys(_paths(line.removesuffix("\r") for line in patch.split("\n"))))


def _paths(lines: Iterable[str]) -> Iterator[bytes]:
    old = new = 0
    for line in lines:
        if old > 0 or new > 0:  # inside a hunk nothing is a header
            old -= line[:1] in (" ", "-", "")
            new -= line[:1] in (" ", "+", "")
        elif hunk := _HUNK.match(line):
            old, new = int(hunk[1] or 1), int(hunk[2] or 1)
        elif found := _HEADER.fullmatch(line):
            name = (found["file"] or found["named"]).split("\t")[0]
            path = _unquoted(name)
            if found["named"]:
                yield path
            elif path != b"/dev/null":
                yield path.partition(b"/")[2]
        elif both := _BOTH.fullmatch(line):
            # a change of a mode, or of a file that is not text, has no other line with the name
            quoted, plain = both["quoted"], both["plain"]
            yield _unquoted(f'"{quoted}"') if plain is None else plain.encode("utf-8", "surrogateescape")


def _unquoted(name: str) -> bytes:
    """Return the bytes of a name that git may have put in quotes."""
    if not (len(name) > 1 and name.startswith('"') and name.endswith('"')):
        return name.encode("utf-8", "surrogateescape")
    parts = re.findall(r"\\([0-7]{3})|\\(.)|([^\\]+)", name[1:-1])
    return b"".join(
        bytes([int(octal, 8)])
        if octal
        else bytes([_ESCAPES.get(escape, ord(escape) & 0xFF)])
        if escape
        else text.encode()
        for octal, escape, text in parts
    )
