"""System calls that a sandbox does not have, and those that it keeps, in every runtime."""

from __future__ import annotations

import errno
import platform

import pytest

from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox_agent.syscall_filter import _CALLS, instructions

pytestmark = pytest.mark.asyncio(loop_scope="module")
MACHINE = _CALLS[platform.machine()]


async def called(sandbox: Sandbox, code: str) -> int:
    """Run an expression with `call(number, ...)` in the sandbox; return its errno, 0 if it succeeds."""
    setup = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)"
    done = await sandbox.ipython(f"{setup}\nprint(ctypes.get_errno() if libc.syscall{code} < 0 else 0)", 60)
    return int(done.output)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("unshare", "0x10000000", errno.EPERM),
        ("unshare", "0x00020000", errno.EPERM),
        ("clone", "0x10000011, 0, 0, 0, 0", errno.EPERM),
        ("clone3", "0, 88", errno.ENOSYS),
        ("setns", "0, 0", errno.EPERM),
        ("mount", "b'x', b'/tmp', b'tmpfs', 0, 0", errno.EPERM),
        ("fsopen", "b'tmpfs', 0", errno.EPERM),
        ("keyctl", "0, -3, 1", errno.EPERM),
        ("add_key", "b'user', b'a', b'b', 1, -3", errno.EPERM),
        ("request_key", "b'user', b'a', 0, -3", errno.EPERM),
        ("bpf", "0, 0, 0", errno.EPERM),
        ("perf_event_open", "0, 0, -1, -1, 0", errno.EPERM),
        ("userfaultfd", "1", errno.EPERM),
        ("io_uring_setup", "1, 0", errno.ENOSYS),
        ("memfd_secret", "0", errno.ENOSYS),
        ("memfd_create", "b'a', 0", errno.ENOSYS),
        ("splice", "0, 0, 1, 0, 1, 0", errno.EINVAL),
        ("vmsplice", "1, 0, 0, 0", errno.EINVAL),
        ("tee", "0, 1, 1, 0", errno.EINVAL),
        ("sendfile", "1, 0, 0, 1", errno.EINVAL),
        ("msgget", "0, 0o1600", errno.ENOSYS),
        ("semget", "0, 33, 0o1600", errno.EINVAL),
        ("socket", "2, 5, 132", errno.EPROTONOSUPPORT),
        ("socket", "10, 1, 262", errno.EPROTONOSUPPORT),
        ("socket", "40, 1, 0", errno.EAFNOSUPPORT),
        ("socket", "17, 3, 0", errno.EAFNOSUPPORT),
        ("socket", "16, 3, 15", errno.EAFNOSUPPORT),
        ("socket", "38, 5, 0", errno.EAFNOSUPPORT),
        ("ioctl", "0, 0x5412, b'x'", errno.EPERM),
        ("shmget", "0, (1 << 16) + 1, 0o1600", errno.ENOSPC),
        ("shmget", "0, ctypes.c_long(1 << 32), 0o1600", errno.ENOSPC),
    ],
)
async def test_a_closed_call_fails(sandbox: Sandbox, name: str, arguments: str, error: int) -> None:
    assert await called(sandbox, f"({MACHINE[name]}, {arguments})") == error


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("socket", "1, 1, 0"),
        ("socket", "2, 1, 0"),
        ("socket", "10, 2, 0"),
        ("socket", "16, 3, 0"),
        ("unshare", "0x200"),
        ("shmget", "0, 1 << 16, 0o1600"),
        ("semget", "0, 32, 0o1600"),
    ],
)
async def test_an_ordinary_call_succeeds(sandbox: Sandbox, name: str, arguments: str) -> None:
    assert await called(sandbox, f"({MACHINE[name]}, {arguments})") == 0


async def test_the_upper_half_of_an_argument_opens_nothing(sandbox: Sandbox) -> None:
    """The kernel reads 32 bits of these arguments, as the filter does."""
    assert await called(sandbox, f"({MACHINE['socket']}, ctypes.c_long(1 << 32 | 40), 1, 0)") == errno.EAFNOSUPPORT


async def test_a_program_for_32_bits_has_no_calls(sandbox: Sandbox) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 runs such programs")
    getpid = bytes([0xB8, 0x14, 0, 0, 0, 0xCD, 0x80, 0xC3])  # mov eax, 20; int 0x80; ret
    code = f"""import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({getpid!r})
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"""
    assert (await sandbox.ipython(code, 60)).output == f"-{errno.ENOSYS}\n"


async def test_threads_and_child_processes_work(sandbox: Sandbox) -> None:
    code = """import multiprocessing, subprocess, threading
done = []
thread = threading.Thread(target=done.append, args=("thread",))
thread.start(), thread.join()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(done, pool.map(abs, [-1, -2]), subprocess.run(["echo", "child"], capture_output=True).stdout)"""
    assert (await sandbox.ipython(code, 60)).output == "['thread'] [1, 2] b'child\\n'\n"
    assert (await sandbox.bash("python3 -c 'import os; print(os.openpty())' | cat", 60)).exit_code == 0


async def test_programs_copy_without_the_calls_that_keep_pages(sandbox: Sandbox) -> None:
    code = """import asyncio, shutil, socket
open("from", "wb").write(bytes(300000))
shutil.copyfile("from", "to"), shutil.copy2("from", "too")
async def served():
    server = await asyncio.start_server(lambda reader, writer: send(writer), "127.0.0.1", 0)
    async def send(writer):
        await asyncio.get_running_loop().sendfile(writer.transport, open("from", "rb"))
        writer.close()
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    return len(await reader.read())
print(len(open("to", "rb").read()), asyncio.run(served()))
one, other = socket.socketpair()
other.settimeout(10)
print(one.sendfile(open("from", "rb"), count=1000), len(other.recv(2000)))"""
    await sandbox.write_file("copies.py", code.encode())
    assert (await sandbox.bash("python3 copies.py", 60)).output == "300000 300000\n1000 1000\n"
    command = (
        "cat from | cat > other; cp from last; tar c from | tar t; cmp other last; dd if=from of=/dev/null status=none"
    )
    assert (await sandbox.bash(f"set -o pipefail; {command}", 60)).output == "from\n"


SET = """
import ctypes, errno, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
limit, mask, zero = struct.pack("QQ", 0, 0), bytes([1, 0, 0, 0, 0, 0, 0, 0]), bytes(4)
attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 19, 0, 0, 0, 0)
def setters(one):
    return {
        "prlimit64": (one, 7, limit, None), "setpriority": (0, one, 19), "sched_setaffinity": (one, 8, mask),
        "sched_setscheduler": (one, 0, zero), "sched_setparam": (one, zero), "sched_setattr": (one, attributes, 0),
        "ioprio_set": (1, one, 3 << 13),
    }
def answers(calls):
    return {name: errno.errorcode[ctypes.get_errno()] for name, words in calls if libc.syscall(CALLS[name], *words) < 0}
"""


async def test_the_sandbox_agent_gets_no_limit_priority_or_cpu_from_inside(sandbox: Sandbox) -> None:
    """prlimit(1, RLIMIT_NOFILE, 0) ended a sandbox. The kernel takes the id of any of its threads for its own."""
    code = f"""CALLS = {MACHINE}{SET}
threads = sorted(map(int, os.listdir("/proc/1/task")))
calls = [call for one in threads for call in setters(one).items()]
calls += [(name, (which + first, who, 19)) for name, first in (("setpriority", 0), ("ioprio_set", 1))
          for which, who in ((1, 1), (2, 0), (2, os.getuid()))]
refused = [list(answers([call]).values()) for call in calls]
print(len(threads) > 4, len(calls) - refused.count(["EPERM"]), libc.syscall(CALLS["prlimit64"], 1, 7, None, bytes(16)))"""
    assert (await sandbox.ipython(code, 60)).output == "True 0 0\n"


async def test_a_program_sets_limits_and_priorities_of_its_own_processes(sandbox: Sandbox) -> None:
    code = f"""CALLS = {MACHINE}{SET}
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    found = [answers([*setters(one).items(), ("setpriority", (1, one, 19))]) for one in (0, os.getpid())]
    os._exit(0 if found == [{{}}, {{}}] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0: time.sleep(60)
print(answers(setters(child).items()))
os.kill(child, 9)"""
    assert (await sandbox.ipython(code, 60)).output == "0\n{}\n"
    assert (
        await sandbox.bash("sleep 9 & taskset -cp 0 $! && renice -n 3 -p $! && prlimit -n9 -p $!", 60)
    ).exit_code == 0


async def test_no_kernel_setting_can_be_written(sandbox: Sandbox) -> None:
    """shmmni gave a sandbox more System V memory than its limit."""
    find = "find /proc/sys -type f 2> /dev/null"
    done = await sandbox.bash(
        f"for f in $({find}); do {{ true >> $f; }} 2> /dev/null && echo $f; done; {find} | wc -l", 60
    )
    assert done.output.strip().isdecimal(), done.output
    assert int(done.output) > 100


@pytest.mark.parametrize("machine", sorted(_CALLS))
async def test_every_jump_stays_in_the_program(machine: str) -> None:
    program = instructions(machine, 12)
    for place, (code, if_true, if_false, _) in enumerate(program):
        if code & 7 == 5:
            assert place + 1 + max(if_true, if_false) < len(program)
