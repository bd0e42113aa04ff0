"""Memory of a whole sandbox: more processes or files than the limit allows, and a result that says so."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.host_processes import host_processes

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOG = "import time; hog = bytearray(100 << 20); time.sleep(600)"
PROCESSES = f"for i in 1 2 3 4; do python3 -c '{HOG}' & done; wait -n"
SHARED = """python3 -c '
import mmap, os, time
for i in range(4):
    hog = mmap.mmap(-1, 100 << 20)
    if os.fork():
        hog.close()
    else:
        hog.write(bytes(100 << 20))
        time.sleep(600)
os.wait()'"""

MAIN_THREAD_ENDED = """python3 -c '
import ctypes, os, threading, time
def fill():
    while "zombie" not in open(f"/proc/{os.getpid()}/status").read():
        time.sleep(0.01)
    hog = bytearray(100 << 20)
    time.sleep(600)
for i in range(4):
    if not os.fork():
        threading.Thread(target=fill).start()
        ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
os.wait()'"""


@pytest.fixture(scope="module")
def spec() -> SandboxSpec:
    return SandboxSpec(None, Limits(cpus=1, memory_bytes=256 << 20, disk_bytes=64 << 20, processes=64))


@pytest.mark.parametrize(
    "command", [PROCESSES, SHARED, MAIN_THREAD_ENDED], ids=["processes", "shared memory", "main thread ended"]
)
async def test_more_memory_than_the_sandbox_may_have(sandbox: Sandbox, command: str) -> None:
    assert (await sandbox.bash("here=1", 60)).exit_code == 0
    result = await sandbox.bash(command, 600)
    assert [note for note in result.notes if "of memory, and its limit is 256 MiB; ended: python3" in note], result
    assert not sandbox.node_fault
    assert (await sandbox.bash("echo $here; jobs -p | xargs -r kill -9", 60)).output.startswith("1\n"), "bash lives on"


one_runtime = pytest.mark.parametrize("runtime", ["bubblewrap"], indirect=True)
"""For tests of what the kernel and the memory guard do, in which no runtime has a part."""
SMALL = Limits(cpus=1, memory_bytes=128 << 20, disk_bytes=1 << 30, processes=64)
SOCKETS = """
import os, socket
def fill():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        held = [socket.socketpair(socket.AF_UNIX, kind) for n in range(100)]
        for one, _ in held:
            one.setblocking(False)
            try:
                while True: one.send(bytes(60000))
            except BlockingIOError: pass
        kept.append(held)"""
LISTENER = """
import os, socket
def fill():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    for n in range(200):
        one = socket.create_connection(listener.getsockname())
        one.setblocking(False)
        try:
            while True: one.send(bytes(60000))
        except BlockingIOError: pass
        kept.append(one)
    kept.append(listener)"""
ACKNOWLEDGED = """
import os, socket, struct
def fill():
    for n in range(800):
        one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        one.setblocking(False)
        one.send(struct.pack("=IHHII", 16, 16, 5, 1, 0) * 300)
        kept.append(one)"""
PAGE_TABLES = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
def fill():
    for n in range(1 << 13):
        ctypes.c_char.from_address(libc.mmap((1 << 44) + (n << 21), 4096, 1, 0x100022, -1, 0)).value"""
PIPES = """
import os
def fill():
    for n in range(480):
        pipe = os.pipe()
        os.set_blocking(pipe[1], False)
        try:
            while True: os.write(pipe[1], bytes(4096))
        except BlockingIOError: pass
        kept.append(pipe)"""
EVERYWHERE = """
import time
kept = []
for n in range(40):
    if not os.fork():
        fill()
        time.sleep(600)
os.wait()"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (SOCKETS, "of it in sockets"),
        (LISTENER, "of it in sockets"),
        (ACKNOWLEDGED, "of it in sockets"),
        (PAGE_TABLES, "of memory;"),
        (PIPES, "of memory;"),
    ],
    ids=["unix", "not accepted", "netlink", "page tables", "pipes"],
)
@one_runtime
async def test_memory_of_the_kernel_counts(sandboxes: SandboxFactory, code: str, said: str) -> None:
    async with await sandboxes.start(SandboxSpec(None, SMALL)) as sandbox:
        await sandbox.write_file("hog.py", (code + EVERYWHERE).encode())
        result = await sandbox.bash("here=1; python3 hog.py; pkill python3", 60)
        assert "ended: python3" in str(result.notes), result
        assert said.replace(";", ", and its limit is 128 MiB;") in str(result.notes)
        assert (await sandbox.bash("echo $here", 60)).output.startswith("1\n"), "bash lives on"


SEGMENTS = """python3 -c '
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for n in range(3000):
    address = libc.shmat(libc.shmget(0, 1 << 16, 0o1600), None, 0)
    ctypes.memset(address, 1, 1 << 16)
    libc.shmdt(ctypes.c_void_p(address))
time.sleep(600)'"""


@one_runtime
async def test_system_v_segments_count_although_no_process_has_attached_them(sandboxes: SandboxFactory) -> None:
    async with await sandboxes.start(
        SandboxSpec(None, Limits(cpus=1, memory_bytes=160 << 20, disk_bytes=1 << 20))
    ) as full:
        result = await full.bash(SEGMENTS, 600)
        assert [note for note in result.notes if "of it in files), and its limit is 160 MiB; ended: python3" in note], (
            result
        )
        freed = await full.bash("ipcs -m | grep -c 65536; ipcrm --all=shm; ipcs -m | grep -c 65536", 60)
        before, after = map(int, freed.output.split())
        assert before > 2000
        assert after == 0, "the task can delete them"


@one_runtime
async def test_empty_files_count(sandboxes: SandboxFactory) -> None:
    code = "import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()"
    async with await sandboxes.start(SandboxSpec(None, SMALL)) as sandbox:
        result = await sandbox.bash(f'python3 -c "{code}"', 60)
        assert "of it in files" in str(result.notes), result
        assert (await sandbox.bash("cd /tmp; ls -U1 | wc -l; ls -U1 | xargs rm -f", 600)).exit_code == 0
        assert (await sandbox.bash("ls /tmp | wc -l", 60)).output == "0\n"


@one_runtime
async def test_files_count_although_the_parent_does_not_wait_for_an_ended_process(sandboxes: SandboxFactory) -> None:
    """While the kernel frees the memory of ended processes, files may grow. An ended process has none, waited for or not."""
    await_end = "while ! grep -q zombie /proc/[0-9]*/status; do sleep 0.05; done"
    fill = "while head -c 1M /dev/zero >> /tmp/fill; do :; done"
    async with await sandboxes.start(SandboxSpec(None, SMALL)) as sandbox:
        hogs = f"import subprocess, time; [subprocess.Popen(['python3', '-c', {HOG!r}]) for _ in '12']; time.sleep(600)"
        await sandbox.write_file("hogs.py", hogs.encode())
        result = await sandbox.bash(f"python3 hogs.py & {await_end}; {fill}", 60)
        assert result.notes, result
        assert int((await sandbox.bash("stat -c %s /tmp/fill", 60)).output) < SMALL.disk_bytes / 2


async def test_a_neighbour_keeps_its_processes_and_the_next_guard_goes_on(
    sandboxes: SandboxFactory, spec: SandboxSpec, sandbox: Sandbox
) -> None:
    async with await sandboxes.start(spec) as neighbour:
        assert (await neighbour.ipython("kept = bytearray(75 << 20)", 60)).output == ""
        own = [process.pid for process in host_processes() if process.parent == os.getpid()]
        (guard,) = (pid for pid in own if b"rollyard.sandbox.memory_guard" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(guard, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, guard, os.WEXITED | os.WNOWAIT)
        assert (await sandbox.bash("true", 60)).exit_code == 0
        assert (await sandbox.bash(PROCESSES, 600)).notes
        result = await neighbour.ipython("len(kept)", 60)
        assert result.output == f"{75 << 20}\n"
        assert not result.notes
