"""The whole tree below a process ends, also what left its session and its parents, and is collected."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from rollyard.core.process_tree import adopt_orphans, descendants, kill_below
adopt_orphans()
DEEP = "import os, time; os.fork() or os.setsid(); os.fork() or os.setsid(); print('up', flush=True); time.sleep(1000)"
children = [subprocess.Popen([sys.executable, "-c", DEEP], stdout=subprocess.PIPE) for _ in range(2)]
orphans = [subprocess.Popen(["bash", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE) for _ in range(2)]
for child in children:
    for _ in range(4):
        child.stdout.readline()
for child in orphans:
    child.stdout.readline()
print(len(descendants(os.getpid())) >= 10)
names, left = kill_below(60.0)
print("sleep" in names, left, descendants(os.getpid(), zombies=True))
for child in (*children, *orphans):
    child.returncode = 0
    child.stdout.close()
"""


def test_everything_below_a_process_is_killed_and_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["True", "True {} []"], done.stderr
