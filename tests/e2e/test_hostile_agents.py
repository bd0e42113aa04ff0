"""Agents that attack everything they can reach, beside ordinary rollouts, under a memory cgroup as Slurm sets it: the
neighbours get their usual rewards, and every process of ours lives on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.rollout import AgentSpec, RolloutRequest, Status
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.trajectory import Trajectory
from tests.support.memory_cgroup import kernel_kills, memory_cgroup, remove
from tests.support.yard import Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(80)]

JOB_MEMORY = 8 << 30
CALL = """python3 - <<'EOF'
import json, os, urllib.request
body = json.dumps({"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF
"""
BOMB = "f() { f | f & }; f"
# Each hog fills its memory at once, in the kernel, and keeps it.
HOGS = """
import mmap, os, signal, sys, time
os.sched_setaffinity(0, range(os.cpu_count()))
def hogs(count, megabytes, kind=mmap.MAP_PRIVATE, leave=False):
    ends = []
    for n in range(count):
        end, kept = os.pipe()
        if os.fork() == 0:
            if leave:
                os.setsid()
                if os.fork(): os._exit(0)
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
            hog = mmap.mmap(-1, megabytes << 20, flags=kind | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
            time.sleep(600)
        os.close(kept)
        ends.append(end)
    import select
    select.select(ends, [], [])  # one of them was ended
"""
SOCKETS = """
import os, socket, time
for n in range(40):
    if os.fork() == 0:
        kept = [socket.socketpair() for n in range(400)]
        for one, _ in kept:
            one.setblocking(False)
            try:
                while True: one.send(bytes(60000))
            except BlockingIOError: pass
        time.sleep(600)
os.wait()"""
SCAN = """
import errno, re, socket
found = set()
for port in range(1, 65536):
    with socket.socket() as s:
        s.settimeout(0.01)
        try:
            s.connect(("127.0.0.1", port))
            if s.getsockname()[1] != port:  # else it has connected to itself
                found.add(f"http://127.0.0.1:{port}/v1")
            s.send(b"x" * 100000)
        except OSError: pass
with socket.socket() as s:
    print(found == {__import__("os").environ["OPENAI_BASE_URL"]}, errno.errorcode[s.connect_ex(("10.0.0.1", 80))])
print("abstract sockets:", re.findall("@.*", open("/proc/net/unix").read()))"""
REFUSED = """
import ctypes, errno, os
libc, answers = ctypes.CDLL(None, use_errno=True), {}
byte = (4096).to_bytes(8, "little") + (1).to_bytes(8, "little")  # struct iovec
def call(name, *words):
    answers[name] = "did" if libc.syscall(*words) != -1 else errno.errorcode[ctypes.get_errno()]
for name, *words in (
    ("add_key", 248, b"user", b"x", b"y", 1, -3), ("keyctl", 250, 0, -3, 1), ("io_uring_setup", 425, 4, bytes(200)),
    ("bpf", 321, 0, bytes(100), 100), ("perf_event_open", 298, bytes(112), 0, -1, -1, 0), ("userfaultfd", 323, 0),
    ("memfd_create", 319, b"x", 0), ("memfd_secret", 447, 0), ("unshare", 272, 0x10000000), ("setns", 308, 0, 0),
    ("mount", 165, b"x", b"/mnt", b"tmpfs", 0, 0), ("ptrace", 101, 16, 1, 0, 0), ("swapoff", 168, b"/x"),
    ("sethostname", 170, b"gone", 4), ("reboot", 169, 0xfee1dead, 672274793, 0x4321fedc, 0),
    ("settimeofday", 164, bytes(16), 0), ("delete_module", 176, b"x", 0), ("prlimit64", 302, 1, 7, bytes(16), 0),
    ("setpriority", 141, 0, 1, 19), ("sched_setaffinity", 203, 1, 8, bytes([1]) + bytes(7)), ("ioprio_set", 251, 1, 1, 24576),
    ("sched_setscheduler", 144, 1, 5, bytes(4)), ("process_vm_writev", 311, 1, byte, 1, byte, 1, 0),
):
    call(name, *words)
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/etc/shadow",
             "/proc/sys/kernel/shmmni", "/proc/1/oom_score_adj",
             "/dev/kmsg", "/dev/mem"):
    try: open(path, "r+b").close(); answers[path] = "did"
    except OSError as error: answers[path] = errno.errorcode[error.errno]
refusals = {"EPERM", "EACCES", "ENOSYS", "ENOENT", "EROFS"}
print("done:", [name for name, answer in answers.items() if answer not in refusals], len(answers))"""
TERMINALS = """
import os, time
for n in range(40):
    if os.fork() == 0:
        try:
            while True: os.openpty()
        except OSError: time.sleep(600)
while True: os.openpty()"""
MANY_FILES = "import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()"


def python(code: str) -> str:
    return f"cat > /tmp/attack.py <<'EOF'\n{code}\nEOF\npython3 /tmp/attack.py"


LIMIT = "of memory.*and its limit is 512 MiB; ended: "
RESULTS = {
    "fork-bomb": (f"{BOMB}; exec sleep 2", "Resource temporarily unavailable"),
    "orphans": (python(HOGS + "hogs(4, 200, leave=True)"), LIMIT + "python3"),
    "memory": (python(HOGS + "hogs(16, 300)"), LIMIT + "python3"),
    "shared-memory": (python(HOGS + "hogs(16, 300, mmap.MAP_SHARED)"), LIMIT + "python3"),
    "tails": ("for i in 1 2 3 4 5 6; do head -c 2G /dev/zero | tail & done; wait", LIMIT + "tail|memory exhausted"),
    "oom-score": (
        "echo -1000 > /proc/self/oom_score_adj; " + python(HOGS + "hogs(16, 300)"),
        "oom_score_adj: Permission denied|Permission denied.*" + LIMIT + "python3",
    ),
    "sockets": (python(SOCKETS), "of it in sockets.*; ended: "),
    "tmpfs": (
        "for d in /tmp /workspace /dev/shm /var/tmp; do for i in 1 2 3 4; do "
        "dd if=/dev/zero of=$d/$i bs=8M count=30; done; done",
        "No space left on device|of it in files.*; ended: ",
    ),
    "inodes": (python(MANY_FILES), "No space left on device"),
    "terminals": (python(TERMINALS), "No space left on device|out of pty devices"),
    "output": ("timeout 1 yes; timeout 1 cat /dev/zero; timeout 1 yes attack; echo ended: $?", "attack.*ended: 124$"),
    "kill": ("kill -STOP 1; kill -9 1; kill -STOP -1; kill -9 -1", "exit code -9"),
    "refused": (python(REFUSED), r"done: \[\] 32"),
    "network": (python(SCAN), r"True ENETUNREACH\nabstract sockets: \[\]"),
    "hours": ("sleep 36000", "within RUN's budget of 5 s"),
}
"""Attack -> its command, and the text that its result must have: the limit that it met."""
ARTIFACTS = {
    "fifo": ("mkfifo FILE", True),
    "link": ("ln -s /etc/shadow FILE && ln -s /proc/1/mem x && ln -s /dev/zero y", True),
    "sparse": ("truncate -s 200M FILE && ! truncate -s 4000G huge", True),
    "device": ("! mknod FILE c 1 5 && ln -sf /dev/zero FILE", True),
    "folder": ("mkdir -p FILE/$(printf 'a%.0s' $(seq 200))", True),
    "bomb": (
        "cat > FILE <<'EOF'\nimport os\nwhile True:\n    try: os.fork()\n    except OSError: pass\nEOF\ntrue",
        False,
    ),
    "hogs": (f"cat > FILE <<'EOF'\n{HOGS}while True: hogs(16, 300)\nEOF\ntrue", False),
}
"""Attack on the evaluation -> its command, and whether the evaluation finds no solution. The model is called, and so there
is an evaluation, only if the command succeeds."""


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=["auto", pytest.param("bubblewrap", marks=pytest.mark.long)]
)
async def attacked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Yard, AsyncClient, Path]]:
    try:
        find_runtime(request.param)
    except SandboxStartFailed:
        pytest.skip(f"{request.param} does not start here")
    yard = Yard(tmp_path_factory.mktemp("yard"))
    with memory_cgroup(JOB_MEMORY) as cgroup:
        try:
            yard.start()
            assert yard.server is not None
            (cgroup / "cgroup.procs").write_text(str(yard.server.pid))  # all others are its children
            async with yard.client() as client:
                sandbox = {"runtime": request.param, "memory": "512M", "disk": "256M"}
                await yard.apply(client, demo={"sandbox": sandbox, "replicas": 1})
                await yard.ready(client)
                yield yard, client, cgroup
        finally:
            await yard.clean_up()
            await remove(cgroup)


def neighbours(prefix: str, count: int) -> list[RolloutRequest]:
    greedy: dict[str, Any] = {"sampling": {"temperature": 0.0}}
    return requests(count // 2, count // 2, prefix=prefix, **greedy)


def attackers(prefix: str) -> list[RolloutRequest]:
    commands = {name: command for name, (command, _) in RESULTS.items()}
    commands |= {name: f"rm -f FILE; {command} && {CALL}" for name, (command, _) in ARTIFACTS.items()}
    return [attacker(f"{prefix}-{name}", command, 5 if name == "hours" else 60) for name, command in commands.items()]


def attacker(name: str, command: str, seconds: int) -> RolloutRequest:
    (request,) = requests(0, 1, prefix=name, budgets={"run_seconds": seconds, "eval_seconds": 10})
    agent = AgentSpec(type="command", command=command.replace("FILE", request.task.fields["solution"]))
    return request.model_copy(update={"agent": agent})


def assert_limits_held(ended: Sequence[Trajectory]) -> None:
    """Assert that each attack met its limit, so that no attack did nothing."""
    for (name, (_, said)), one in zip(RESULTS.items(), ended, strict=False):
        assert one.error is not None, (name, one)
        assert re.search(said, one.error.message, re.DOTALL), (name, one.error)
        assert len(one.error.message) < 4000
    for (name, (_, missing)), one in zip(ARTIFACTS.items(), ended[len(RESULTS) :], strict=True):
        assert (one.status, one.reward) == (Status.COMPLETED, 0.0), (name, one.status, one.error)
        assert ("missing_file" in one.metrics, one.metrics["passed"]) == (missing, 0.0), (name, one.metrics)


def rewards(ended: list[Trajectory]) -> list[float | None]:
    assert {one.status for one in ended} == {Status.COMPLETED}, [(one.status, one.error) for one in ended]
    return [one.reward for one in ended]


@pytest.mark.long  # one_yard/test_own_harm.py has agents that hurt their own sandbox, and their neighbours
@pytest.mark.parametrize(("rounds", "count"), [(1, 10), (5, 20)])
async def test_neighbours_of_hostile_agents_get_their_usual_rewards(
    attacked: tuple[Yard, AsyncClient, Path], rounds: int, count: int
) -> None:
    yard, client, cgroup = attacked
    usual = rewards(await yard.gather(client, await client.submit(neighbours(f"usual-{rounds}", count))))
    ours = {name: yard.processes(name) for name in ("node-agent", "inference-server")}
    for number in range(rounds):
        hostile = await client.submit(attackers(f"attack-{rounds}-{number}"))
        beside = await client.submit(neighbours(f"beside-{rounds}-{number}", count))
        assert rewards(await yard.gather(client, beside)) == usual
        attacks = await yard.gather(client, hostile)
        assert_limits_held(attacks)
    assert {name: yard.processes(name) for name in ours} == ours, "no process of ours was replaced"
    assert kernel_kills(cgroup) == 0, "the memory guard acted before the kernel"

    async def all_closed() -> bool:
        return not yard.sandboxes()

    await yard.until(all_closed)
