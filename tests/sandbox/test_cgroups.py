"""Cgroups of version 2 around sandboxes, in a kernel that has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.other_kernel import run

pytestmark = pytest.mark.slow(40)
MIB = 1 << 20

JOB = """
import asyncio, json, os, signal, subprocess, sys, time
from pathlib import Path

root, job = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/job")
(root / "cgroup.subtree_control").write_text("+memory +pids +cpu")
job.mkdir()
(job / "memory.max").write_text(str(1 << 30))
(job / "cgroup.procs").write_text(str(os.getpid()))

from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.cgroups import NoDelegation, SandboxCgroups
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory

found = {}
try:
    SandboxCgroups.enter()
except NoDelegation as why:
    found["not marked"] = str(why)
os.setxattr(job, "trusted.delegate", b"1")

# A node agent that was killed has left a sandbox.
left = job / "rollyard-sandboxes-left"
(left / "sandbox").mkdir(parents=True)
sleeper = subprocess.Popen(["sleep", "600"])
(left / "sandbox" / "cgroup.procs").write_text(str(sleeper.pid))

HOGS = '''
import os, time
for n in range(8):
    if os.fork() == 0:
        hog = bytearray(60 << 20)
        time.sleep(600)
os.wait()
'''
SLOW = '''
import os, time
child = os.fork()
hog = [bytearray((40 if child else 60) << 20)]
while child:  # the guard has seconds between its limit and the kernel's
    hog.append(bytearray(1 << 20))
    time.sleep(0.5)
time.sleep(600)
'''
SHARED = HOGS.replace("bytearray(60 << 20)", "__import__('mmap').mmap(-1, 60 << 20, flags=0x8021)")
MIB = 1 << 20

def number(folder, name):
    return int((folder / name).read_text().split()[0])

async def main():
    cgroups = SandboxCgroups.enter()
    found["swept"] = not left.exists() and sleeper.wait() == -9
    found["own"] = Path("/proc/self/cgroup").read_text().strip()
    found["all"] = number(cgroups.folder, "memory.max") // MIB
    small = SandboxSpec(None, Limits(0.5, 128 * MIB, 64 * MIB, processes=64))
    wide = SandboxSpec(None, Limits(2, 128 * MIB, 512 * MIB, processes=64))
    async with SandboxFactory(find_runtime("bubblewrap"), cgroups=cgroups) as sandboxes:
        async with await sandboxes.start(small) as neighbour, await sandboxes.start(wide) as sandbox:
            await neighbour.bash("here=neighbour", 60)
            one, other = cgroups.folder / sandbox.id, cgroups.folder / neighbour.id
            found["limits"] = [(one / name).read_text().strip() for name in ("memory.max", "pids.max", "cpu.max")]
            found["processes"] = (one / "cgroup.procs").read_text().split()
            guard = sandboxes._guard._process
            guard.send_signal(signal.SIGSTOP)  # the kernel is alone
            for name, code in (("hogs", HOGS), ("shared", SHARED)):
                await sandbox.write_file("/tmp/hog.py", code.encode())
                result = await sandbox.bash("here=1; python3 /tmp/hog.py; pkill -9 python3", 120)
                found[name] = list(result.notes)
                found[name + " here"] = (await sandbox.bash("echo $here", 60)).output
            result = await sandbox.bash("for n in 1 2 3; do dd if=/dev/zero of=/dev/shm/$n bs=1M count=100; done", 120)
            found["files"] = list(result.notes)
            found["alive"] = sandbox.alive and (await sandbox.bash("rm /dev/shm/*; echo works", 60)).output.split()[-1]
            found["peak"] = number(one, "memory.peak") / MIB
            guard.send_signal(signal.SIGCONT)
            result = await neighbour.bash("f() { f | f & }; f 2>/dev/null; exec sleep 1", 60)
            found["bomb"] = number(other, "pids.current")
            await sandbox.write_file("/tmp/hog.py", SLOW.encode())
            found["guard"] = list((await sandbox.bash("python3 /tmp/hog.py; pkill -9 python3", 120)).notes)
            found["neighbour"] = (await neighbour.bash("echo works", 60)).output
        found["left"] = [path.name for path in cgroups.folder.iterdir() if path.is_dir()]
    found["end"] = sorted(path.name for path in job.iterdir() if path.is_dir())

asyncio.run(main())
print(json.dumps(found))
"""


def test_the_kernel_limits_a_whole_sandbox(tmp_path: Path) -> None:
    found = json.loads(run(tmp_path, JOB, seconds=400).strip().splitlines()[-1])
    assert found["not marked"] == "the cgroup of this process is not marked as delegated"
    assert found["swept"], "nothing of a killed node agent is left"
    assert found["own"] == "0::/job/rollyard"
    assert found["all"] == 1024 - 32, "half of the reserve is left for the node agent"
    assert found["limits"] == [str(144 * MIB), "80", "200000 100000"]
    assert found["processes"], "the sandbox's processes began in its cgroup"
    assert found["peak"] <= 144, "the limit has held"
    for attack in ("hogs", "shared", "files"):
        (note,) = found[attack]
        assert re.fullmatch(
            r"the sandbox used 144 MiB of memory, and its limit is 128 MiB; the kernel ended \d+ of its processes", note
        )
    assert found["hogs here"] == found["shared here"] == "1\n", "bash lives on"
    assert found["alive"] == "works"
    assert found["bomb"] <= 80
    assert any("; ended: python3 (process " in note for note in found["guard"]), found["guard"]
    assert found["neighbour"] == "works\n"
    assert found["left"] == []
    assert found["end"] == ["rollyard"]
