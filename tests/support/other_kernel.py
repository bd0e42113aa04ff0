"""Python in a kernel of its own: Linux as a process of this machine (Debian's package user-mode-linux), which has cgroups of
version 2 whatever this machine has. Its root is this machine's: a test must write into /run only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.host.node_cache import node_cache

ROOT = Path(__file__).resolve().parents[2]
INIT = """#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run PYTHONPATH={root} ROLLYARD_CACHE={cache}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t devpts pts /dev/pts 2>/dev/null || (mkdir /dev/pts && mount -t devpts pts /dev/pts)
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
echo {begin}
cd {root} && {python} - {words} <<'END OF PROGRAM'
{program}
END OF PROGRAM
echo "{end} $?"
echo o > /proc/sysrq-trigger
sleep 60
"""
BEGIN, END = "rollyard-test-begins", "rollyard-test-ended"


def run(folder: Path, program: str, *words: str, seconds: float) -> str:
    """Run a Python program in the other kernel as its root; return its output. `folder`: empty folder for the kernel's
    files. Skips the test if the kernel is not installed."""
    kernel = shutil.which("linux.uml")
    if kernel is None:
        pytest.skip("no linux.uml here (package user-mode-linux)")
    init = folder / "init"
    text = INIT.format(
        root=ROOT,
        begin=BEGIN,
        end=END,
        cache=node_cache(),
        python=sys.executable,
        words=" ".join(words),
        program=program,
    )
    init.write_text(text)
    init.chmod(0o755)
    argv = [
        kernel,
        "mem=2G",
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        f"init={init}",
        "con=null",
        "con0=null,fd:1",
        "quiet",
    ]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=seconds, check=False, cwd=folder, env={"PATH": "/usr/bin:/bin", "TMPDIR": "/dev/shm", "HOME": str(folder)},
    )  # fmt: skip
    _, _, said = done.stdout.partition(BEGIN)
    said, _, status = said.partition(END)
    assert status.startswith(" 0"), done.stdout
    return said
