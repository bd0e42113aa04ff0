"""Agents that attack everything they can reach, beside ordinary rollouts, under a memory cgroup as Slurm sets it: the
neighbours get their usual rewards, and every process of ours lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.rollout import RolloutRequest, Status, Trajectory
from rollyard.node.sandbox.find_runtime import find_runtime
from tests.support.memory_cgroup import kernel_kills, memory_cgroup, remove
from tests.support.yard import Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(120)]

JOB_MEMORY = 8 << 30
NEIGHBOURS = 20
CALL = """python3 - <<'EOF'
import json, os, urllib.request
body = json.dumps({"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF
"""
BOMB = "f() { f | f & }; f 2>/dev/null"
HOG = "python3 -c 'import time; hog = bytearray(200 << 20); time.sleep(600)'"
SOCKETS = """cat > /tmp/sockets.py <<'EOF'
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
os.wait()
EOF
python3 /tmp/sockets.py"""
FILES = "rm -f solution.py; "

ATTACKS = {
    "fork-bomb": f"{BOMB}; sleep 5",
    "orphans": f"for i in 1 2 3 4; do (setsid nohup sh -c 'trap \"\" TERM HUP INT; {HOG}' &) ; done; sleep 5",
    "time-bomb": f"(sleep 3; {BOMB}) & (sleep 4; {HOG} & {HOG} & {HOG}) & exit 0",
    "hours": "sleep 36000",
    "memory": f"for i in 1 2 3 4 5 6; do {HOG} & done; wait -n; wait",
    "tmpfs": "for d in /tmp /workspace /dev/shm /var/tmp; do for i in 1 2 3 4; do head -c 200M /dev/zero > $d/$i; done; done",
    "inodes": "python3 -c \"import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()\"",
    "sockets": SOCKETS,
    "output": "timeout 5 yes; timeout 5 cat /dev/zero; timeout 5 cat /dev/urandom",
    "fifo": f"{FILES} mkfifo solution.py",
    "link": f"{FILES} ln -s /etc/shadow solution.py; ln -s /proc/1/mem x; ln -s /dev/zero y",
    "sparse": f"{FILES} truncate -s 200M solution.py; truncate -s 4000G huge",
    "device": f"{FILES} mknod solution.py c 1 5; ln -sf /dev/zero solution.py",
    "folder": f"{FILES} mkdir -p solution.py/$(printf 'a%.0s' $(seq 200))",
    "kill": "kill -STOP 1; kill -9 1; kill -STOP -1; kill -9 -1",
    "trace": 'python3 -c "import ctypes; print([ctypes.CDLL(None).ptrace(16, n, None, None) for n in range(1, 300)])"',
    "oom-score": f"echo -1000 > /proc/self/oom_score_adj; echo 0 > /proc/self/oom_score_adj; {HOG} & {HOG} & {HOG}; wait",
    "kernel": "for f in /proc/sysrq-trigger /proc/sys/kernel/* /sys/fs/cgroup/*/cgroup.procs; do echo 1 > $f; done; "
    "mount -t cgroup x /mnt; unshare -Ur true; date -s 2000-01-01; hostname gone; swapoff -a; rmmod x; reboot -f",
    "network": 'python3 -c "import socket\nfor port in range(1, 65536):\n    s = socket.socket()\n    s.settimeout(0.01)\n'
    "    try: s.connect(('127.0.0.1', port)); s.send(b'x' * 100000)\n    except OSError: pass\"",
    "terminals": 'python3 -c "import os, time\nfor n in range(40):\n    if os.fork() == 0:\n        try:\n'
    '            while True: os.openpty()\n        except OSError: time.sleep(600)" & sleep 5',
}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["bubblewrap", "apptainer"])
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


def neighbours(prefix: str) -> list[RolloutRequest]:
    greedy: dict[str, Any] = {"sampling": {"temperature": 0.0}}
    return requests(NEIGHBOURS // 2, NEIGHBOURS // 2, prefix=prefix, **greedy)


def attackers(prefix: str) -> list[RolloutRequest]:
    found = []
    for name, attack in ATTACKS.items():
        more: dict[str, Any] = {
            "agent": {"type": "command", "command": CALL + attack},
            "budgets": {"run_seconds": 25},
        }
        found += requests(0, 1, prefix=f"{prefix}-{name}", **more)
    return found


def rewards(ended: list[Trajectory]) -> list[float | None]:
    assert {one.status for one in ended} == {Status.COMPLETED}, [(one.status, one.error) for one in ended]
    return [one.reward for one in ended]


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.long)])
async def test_neighbours_of_hostile_agents_get_their_usual_rewards(
    attacked: tuple[Yard, AsyncClient, Path], rounds: int
) -> None:
    yard, client, cgroup = attacked
    usual = rewards(await yard.gather(client, await client.submit(neighbours(f"usual-{rounds}"))))
    ours = {name: yard.processes(name) for name in ("node-agent", "inference-server")}
    for number in range(rounds):
        hostile = await client.submit(attackers(f"attack-{rounds}-{number}"))
        beside = await client.submit(neighbours(f"beside-{rounds}-{number}"))
        assert rewards(await yard.gather(client, beside)) == usual
        for ended in await yard.gather(client, hostile):
            assert ended.status is not Status.INFRA_FAILED, (ended.id, ended.error)
    assert {name: yard.processes(name) for name in ours} == ours, "no process of ours was replaced"
    assert kernel_kills(cgroup) == 0, "the memory guard acted before the kernel"

    async def all_closed() -> bool:
        return not yard.sandboxes()

    await yard.until(all_closed)
