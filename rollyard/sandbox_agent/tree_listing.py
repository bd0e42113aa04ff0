"""Prints the files and folders of a folder, and digests of those that are named on standard input.

`python -m rollyard.sandbox_agent.tree_listing FOLDER NAME...` does not look into folders with one of the names. Standard input
has paths that begin in the folder, each with a zero byte behind it. Each record of the output has a kind (d, f, l, o), the mode
in octal digits, a SHA-256 or -, and the path, with a zero byte behind it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def listing(top: bytes, closed: set[bytes], digested: set[bytes]) -> Iterator[bytes]:
    """Yield the records of everything below `top`."""
    waiting = [b""]
    while waiting:
        above = waiting.pop()
        with os.scandir(top + b"/" + above) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = above + entry.name
            info = entry.stat(follow_symlinks=False)
            kind, digest = b"o", b"-"
            if stat.S_ISDIR(info.st_mode):
                kind = b"d"
                if entry.name not in closed:
                    waiting.append(path + b"/")
            elif stat.S_ISLNK(info.st_mode):
                kind, digest = b"l", _digest(os.readlink(entry.path))
            elif stat.S_ISREG(info.st_mode):
                kind = b"f"
                if path in digested:
                    with open(entry.path, "rb") as file:
                        digest = _digest(file.read())
            yield b" ".join((kind, b"%o" % stat.S_IMODE(info.st_mode), digest, path)) + b"\0"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


if __name__ == "__main__":
    wanted = set(sys.stdin.buffer.read().split(b"\0"))
    records = listing(os.fsencode(sys.argv[1]), set(map(os.fsencode, sys.argv[2:])), wanted)
    sys.stdout.buffer.write(b"".join(records))
