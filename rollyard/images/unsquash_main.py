"""The process that unpacks a SquashFS file system, as the account of the sandboxes. Its argument is a job in JSON; it prints
the result in JSON (`squashfs_source.py`).

The work is done by the program unsquashfs, or by Apptainer. It ends when the node agent ends.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollyard.core.process_tree import die_with
from rollyard.images.child_account import become_sandbox_account

_UNSQUASHFS_SOME_FAILED = 2
"""Status of unsquashfs if only devices, which need root, could not be made."""
_ENV_FILES = ("10-docker2singularity.sh", "90-environment.sh")
_EXPORT = re.compile(r"\s*export\s+([A-Za-z_]\w*)=(.*)")
_DEFAULT = re.compile(r'"\$\{\w+:-"(.*)"\}"')
"""The form in which Apptainer keeps a variable of a Docker image."""
_MOST_TEXT = 1 << 20
_MOST_DEPTH = 200
"""Greatest depth of folders. Python's functions on trees of folders are recursive."""
_BLOCK = 4096
"""Least number of bytes that a file counts."""
_SMALL = ("-p", "4", "-da", "64", "-fr", "64")
"""Options for few threads, and caches of 64 MiB."""
_MOST_MEMORY = 4 << 30
"""Address space of unsquashfs, which keeps the tables of a file system in memory. A small file may have large tables."""


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Unpack the file system at `offset` of `file` into the folder `root`."""
    parent = os.getppid()
    file = os.open(job["file"], os.O_RDONLY | os.O_NONBLOCK)  # a folder above may be closed for the account
    become_sandbox_account(job["uid"], job["gid"], parent)
    path, root = f"/proc/self/fd/{file}", job["root"]
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return {"failed": f"the user of the sandboxes cannot read {job['file']}: allow it (chmod a+r)"}
    if job["program"] == "unsquashfs":
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        sized, deepest = _listed([job["path"], "-lln", "-o", str(job["offset"]), path], file, job["limit"])
        if sized > job["limit"]:
            return {"too_big": True}
        if deepest > _MOST_DEPTH:
            return {"failed": f"it has folders nested more than {_MOST_DEPTH} deep"}
        argv = [job["path"], "-f", "-n", "-no-xattrs", *_SMALL, "-o", str(job["offset"]), "-d", root, path]
        accepted: tuple[int, ...] = (0, _UNSQUASHFS_SOME_FAILED)
    else:
        os.rmdir(root)
        argv, accepted = [job["path"], "build", "--sandbox", root, job["file"]], (0,)
    done = _run(argv, file, job["home"])
    complaints = done.stderr.decode(errors="replace").strip()
    if "No space left" in complaints or "quota exceeded" in complaints.lower():
        return {"disk_full": True}
    if done.returncode not in accepted:
        return {"failed": complaints[-500:] or f"{job['program']} ended with status {done.returncode}"}
    total = _open_up(root)
    return {"too_big": True} if total > job["limit"] else {"bytes": total, "env": dict(_environment(Path(root)))}


def _run(argv: Sequence[str], file: int, home: str) -> subprocess.CompletedProcess[bytes]:
    names = ("APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_CACHEDIR", "SINGULARITY_TMPDIR", "HOME")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **dict.fromkeys(names, home)}
    return subprocess.run(
        argv, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        pass_fds=[file], preexec_fn=partial(die_with, os.getpid()), check=False,
    )  # fmt: skip


def _listed(argv: Sequence[str], file: int, limit: int) -> tuple[int, int]:
    """Return the sum of the files' lengths and the greatest depth, so that a file system that is too large is not unpacked
    first. A list that is beyond the limit is not read to its end."""
    total = deepest = 0
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[file],
        preexec_fn=partial(die_with, os.getpid()),
    ) as listing:  # fmt: skip
        assert listing.stdout is not None
        for line in listing.stdout:
            words = line.split(None, 3)
            if len(words) > 2:
                total += max(_BLOCK, int(words[2]) if words[0].startswith(b"-") and words[2].isdigit() else 0)
                deepest = max(deepest, words[-1].partition(b" -> ")[0].count(b"/") - 1)
            if total > limit or deepest > _MOST_DEPTH:
                listing.kill()
                break
    return total, deepest


def _open_up(root: str) -> int:
    """Let the owner read and write all, and remove what is not a file, folder or link. Return the bytes on disk."""
    total, waiting = 0, [root]
    while waiting:
        folder = waiting.pop()
        os.chmod(folder, os.lstat(folder).st_mode & 0o1777 | 0o700)
        for entry in list(os.scandir(folder)):
            info = entry.stat(follow_symlinks=False)
            total += max(_BLOCK, info.st_blocks * 512)
            if stat.S_ISDIR(info.st_mode):
                waiting.append(entry.path)
            elif stat.S_ISREG(info.st_mode):
                os.chmod(entry.path, info.st_mode & 0o777 | 0o600)
            elif not stat.S_ISLNK(info.st_mode):
                os.unlink(entry.path)
    return total


def _environment(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables that Apptainer keeps in the image, and whose values are plain texts."""
    for name in _ENV_FILES:
        file = root / ".singularity.d" / "env" / name
        if file.is_file() and file.resolve().is_relative_to(root.resolve()) and file.stat().st_size <= _MOST_TEXT:
            for line in file.read_text(errors="replace").splitlines():
                if found := _EXPORT.fullmatch(line):
                    yield from _plain_value(found[1], found[2].strip())


def _plain_value(name: str, text: str) -> Iterator[tuple[str, str]]:
    if default := _DEFAULT.fullmatch(text):
        text = f'"{default[1]}"'
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return
    if len(words) == 1 and "$" not in text and "`" not in text:
        yield name, words[0]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
