"""Ways in which an agent hurts its own sandbox, in RUN or for EVAL: each rollout gets the reward that its work deserves, or 0,
at its first attempt, and its neighbours get theirs. So it is for root and for an ordinary user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.e2e.one_yard.conftest import OnRuntime
from tests.e2e.test_hostile_agents import CALL
from tests.support.small_roots import python_root

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(60)]

RIGHT = "def f(n):\n    return n * n\n"
PRLIMIT = """import resource
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU):
    try: resource.prlimit(1, kind, (0, 0))
    except PermissionError: pass
"""
NICE = """import os
for call in (lambda: os.setpriority(0, 1, 19), lambda: os.setpriority(2, 0, 19), lambda: os.sched_setaffinity(1, {0}),
             lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))):
    try: call()
    except PermissionError: pass
"""
ENDLESS = "while True: pass"
SLEEPS = "printf '#!/bin/sh\\nexec sleep 1000\\n' > {0}.new && chmod 755 {0}.new && mv -f {0}.new {0}"
LIBRARY = "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')"

INODES = """import itertools
for n in itertools.count(): open(str(n), "w")
"""
SEGMENTS = """import ctypes
libc = ctypes.CDLL(None)
for n in range(5000): libc.shmat(libc.shmget(0, 1 << 16, 0o1600), None, 0)
"""

FROM_FILES = {
    "python-sleeps": (SLEEPS.format("/usr/bin/python3"), 0.0),
    "python-is-endless": (f"d={LIBRARY}; rm -f $d/sitecustomize.py; echo '{ENDLESS}' > $d/sitecustomize.py", 0.0),
    "random-bytes": ("dd if=/dev/urandom of=/workspace/noise bs=1M count=70", 1.0),
    "bash-sleeps": (SLEEPS.format("/bin/bash"), 1.0),
    "python-is-gone": ("rm /usr/bin/python3", 1.0),
    "python-is-a-folder": ("rm /usr/bin/python3; mkdir /usr/bin/python3; true", 1.0),
    "no-bin": ("rm -rf /bin; true", 1.0),
    "root-closed": ("chmod 000 /", 1.0),
    "all-removed": ("rm -rf /* 2> /dev/null; true", 0.0),
    "no-library": (f"rm -rf {LIBRARY}", 0.0),
    "preload": ("echo /nowhere.so > /etc/ld.so.preload; true", 1.0),
    "disk-full": ("dd if=/dev/urandom of=/workspace/noise bs=1M 2> /dev/null; true", 1.0),
    "inodes-full": (f"cd /tmp; python3 -c '{INODES}' 2> /dev/null; true", 1.0),
    "tmp-is-a-file": ("rm -rf /tmp/* ; rmdir /tmp 2> /dev/null && touch /tmp; true", 0.0),
    "holes": ("truncate -s 200M /workspace/holes; true", 1.0),
    "links": ("mkdir l; for i in $(seq 2000); do ln s.py l/$i; done", 1.0),
    "deep": (
        "python3 -c \"import os\nos.chdir('/tmp')\nfor n in range(500): os.mkdir('d' * 200); os.chdir('d' * 200)\"",
        1.0,
    ),
}
"""Way -> its command, which follows a right solution, and the reward. Where python3 or bash is gone, our own is used."""
IN_RUN = {
    "prlimit": (f"python3 -c '{PRLIMIT}'", 1.0),
    "nice": (f"python3 - <<'EOF'\n{NICE}\nEOF", 1.0),
    "kill-all": ("(sleep 0.2; kill -STOP 1; kill -9 1; kill -STOP -1; kill -9 -1) & sleep 1", 1.0),
    "stop-all": ("kill -STOP -1", 1.0),
    "fork-bomb": ("f() { f | f & }; f; sleep 1", 1.0),
    "fill-pids": (
        'python3 -c "import os, time\nwhile True:\n  try:\n    if os.fork() == 0: time.sleep(600)\n  except OSError: break"',
        1.0,
    ),
    "spin": ("for i in $(seq 200); do while :; do :; done & done; true", 1.0),
    "memory": ('python3 -c "x = []\nwhile True: x.append(bytearray(50 << 20))"; true', 1.0),
    "run-disk-full": (
        "dd if=/dev/zero of=/workspace/fill bs=1M 2> /dev/null; dd if=/dev/zero of=/tmp/fill bs=1M 2> /dev/null; true",
        1.0,
    ),
    "run-root-closed": ("chmod 000 /", 1.0),
    "run-all-removed": ("rm -rf /* 2> /dev/null; true", 0.0),
    "workspace-closed": ("chmod 000 /workspace", 1.0),
    "fifo": ("rm /workspace/s.py; mkfifo /workspace/s.py", 0.0),
    "device-link": ("ln -sf /dev/zero /workspace/s.py", 0.0),
    "huge": ("truncate -s 200M /workspace/s.py", 0.0),
    "output": ("timeout 1 yes; timeout 1 cat /dev/zero; true", 1.0),
    "close-all": ('for i in $(seq 0 60); do eval "exec $i>&-" 2> /dev/null; done', 1.0),
    "ulimits": ("ulimit -n 3 -f 0 -t 1; true", 1.0),
    "kill-shell": ("kill -9 $$", 1.0),
    "kill-parent": ("kill -9 $PPID; kill -TERM $PPID; true", 1.0),
    "mounts": ("mount -t tmpfs x /workspace; umount -l /proc; umount -l /workspace; true", 1.0),
    "terminals": ('python3 -c "import os, time\ntry:\n  while True: os.openpty()\nexcept OSError: pass"; true', 1.0),
    "segments": (f"python3 -c '{SEGMENTS}'; true", 1.0),
}
"""The same for tasks whose EVAL gets the solution alone."""
IN_EVAL = {
    "eval-prlimit": (PRLIMIT, 1.0),
    "eval-nice": (NICE, 1.0),
    "eval-kill": ("import os, signal\nos.kill(1, 9)\nos.kill(-1, signal.SIGSTOP)\n", 0.0),
    "eval-fork-bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n", 0.0),
    "eval-memory": ("x = []\nwhile True: x.append(bytearray(50 << 20))\n", 0.0),
    "eval-endless": (ENDLESS + "\n", 0.0),
    "eval-closes": ("import os\nos.closerange(0, 1000)\n", 0.0),
}
"""Way -> the first lines of a right solution, and its reward."""
SHORT = {
    "own": (
        "python-sleeps", "random-bytes", "root-closed", "prlimit", "kill-all", "run-root-closed", "eval-prlimit", "eval-kill",
    ),
    "ordinary": ("no-library", "root-closed", "kill-all", "run-root-closed", "eval-kill"),
}  # fmt: skip


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """An image whose files the sandboxes' account owns, as it does those of a registry's images."""
    account = sandbox_account()
    with tempfile.TemporaryDirectory(prefix="rollyard-test-") as folder:
        os.chmod(folder, 0o755)
        root = python_root(Path(folder) / "root")
        if account.credentials:
            for path in (root, *root.rglob("*")):
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        yield root


def ways(prefix: str, image: Path) -> dict[str, tuple[RolloutRequest, float]]:
    found = {}
    for name, (command, reward) in FROM_FILES.items():
        found[name] = _request(prefix, name, RIGHT, command, image, eval_from_snapshot=True), reward
    for name, (command, reward) in IN_RUN.items():
        found[name] = _request(prefix, name, RIGHT, command, image), reward
    for name, (lines, reward) in IN_EVAL.items():
        found[name] = _request(prefix, name, lines + RIGHT, "true", image), reward
    return found


def _request(prefix: str, name: str, solution: str, command: str, image: Path, **more: Any) -> RolloutRequest:
    cases = [{"call": "f(3)", "expect": "9"}]
    task = {
        "kind": "code",
        "problem": "Square.",
        "solution": "/workspace/s.py",
        "cases": cases,
        "image": str(image),
        **more,
    }
    line = f"{CALL}cat > /workspace/s.py <<'EOF'\n{solution}EOF\n{command}"
    budgets = {"run_seconds": 60, "eval_seconds": 24}  # a busy machine takes its time; some of the ways use all of it
    agent = {"type": "command", "command": line}
    return RolloutRequest.model_validate(
        {"id": f"way-{prefix}-{name}", "pool": "demo", "task": task, "agent": agent, "budgets": budgets}
    )


async def test_an_agent_that_hurts_its_own_sandbox_is_scored_at_once(
    on_runtime: OnRuntime, image: Path, long_run: bool
) -> None:
    yard, client, prefix = on_runtime.yard, on_runtime.client, f"{on_runtime.user}-{on_runtime.runtime}"
    asked = {name: way for name, way in ways(prefix, image).items() if long_run or name in SHORT[on_runtime.user]}
    beside = [_request(prefix, f"neighbour-{n}", RIGHT, "true", image) for n in range(len(asked) // 4)]
    ids = await client.submit([*(request for request, _ in asked.values()), *beside])
    ended = dict(zip([*asked, *(one.id for one in beside)], await yard.gather(client, ids, 1500.0), strict=True))
    wrong = []
    for name, one in ended.items():
        wanted = asked[name][1] if name in asked else 1.0
        if one.reward != wanted or one.attempt != 1 or not one.status.scored:
            wrong.append((name, one.status, one.reward, wanted, one.attempt, one.error, one.notes))
        print(name, one.status, one.reward, one.attempt, dict(one.metrics), one.notes)
    assert wrong == []
    if "python-sleeps" in ended:
        assert ended["python-sleeps"].metrics["broken_sandbox"] == 1.0
        assert ended["python-sleeps"].status in (Status.COMPLETED, Status.TRUNCATED)
