"""Commands run by hand: in a chroot of an image's folder, whose changes are gone afterwards."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SCRIPT = """\
mount -t tmpfs changes "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
mount -t overlay root -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root" &&
cp "$3" "$1/root/by_hand.sh" && mount --rbind /dev "$1/root/dev" && mount -t proc proc "$1/root/proc" || exit 125
place=$1; shift 3
exec chroot "$place/root" /bin/env -i "$@" /bin/bash /by_hand.sh
"""
_PASSED = {
    "python": re.compile(r"^PASSED (\S+)", re.MULTILINE),
    "javascript": re.compile(r"^ok \d+ (.*)$", re.MULTILINE),
    "go": re.compile(r"^\s*--- PASS: (\S+) ", re.MULTILINE),
    "rust": re.compile(r"^test (\S+) \.\.\. ok$", re.MULTILINE),
}
_FAILED = re.compile(
    r"^not ok \d+ (.*)$|^\s*--- FAIL: (\S+) |^(?:FAILED|ERROR) (\S+)|^test (\S+) \.\.\. FAILED$", re.MULTILINE
)


def run_by_hand(root: Path, environment: Mapping[str, str], script: str) -> str:
    """Return what the script prints."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", *own, "--mount", "--pid", "--fork", "bash", "-c", _SCRIPT, "bash", folder, str(root)]
        command += [file.name, *(f"{name}={value}" for name, value in environment.items())]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
        )
    output = done.stdout.decode("utf-8", "replace")
    assert done.returncode != 125, output
    return output


def passed_by_hand(language: str, output: str) -> set[str]:
    """Return the tests that passed, as a reader of the output finds them."""
    passed, failed = (
        {next(filter(None, found.groups())) for found in one.finditer(output)} for one in (_PASSED[language], _FAILED)
    )
    return passed - failed
