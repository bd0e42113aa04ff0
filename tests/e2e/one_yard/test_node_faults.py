"""Faults of a node while a rollout is at work: its memory, its disk, its files, its processes. No rollout is scored by them.
Each is tried again, and gets the reward of its work, for root and for an ordinary user."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.trajectory import Trajectory
from tests.e2e.one_yard.conftest import OnRuntime
from tests.e2e.one_yard.node_faults import FAULTS, TELLING, Struck, entries, let_go_on
from tests.e2e.test_hostile_agents import CALL
from tests.support.sandbox_processes import Found, whose_command_has
from tests.support.small_roots import python_root
from tests.support.until import COSTLY_PAUSE, until

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(60)]

# It has memory of its own, waits for a signal, and starts a process at its end.
WAITS = 'import subprocess, sys; from signal import *; kept = b"1" * (64 << 20); \
signal(SIGALRM, lambda *_: 0); alarm(int(float(sys.argv[1]))); signal(SIGUSR1, lambda *_: 0); pause(); alarm(0); \
subprocess.run(["/bin/sh", "-c", "true"], check=True)'
SHORT = {"own": ("run-little-memory", "between-image-deleted"), "ordinary": ("run-little-memory",)}
MARKS = {name: f"30.{number:03}{os.getpid():08}" for number, name in enumerate(FAULTS, 101)}
"""For each fault the most seconds that its process waits, by which it is found."""


@pytest.fixture
def images(on_runtime: OnRuntime) -> dict[str, str | None]:
    """Name -> image: that of the pool, a folder, and a file that the node agent unpacks."""
    home, user = on_runtime.yard.folder, on_runtime.yard.ordinary
    folder, archive = home / "image", home / "image.tar"
    if not folder.exists():
        python_root(folder)
        _save(folder, archive)
        if user is not None or os.geteuid() == 0:
            subprocess.run(["chown", "-hR", "nobody:", folder], check=True)
        if user is not None:
            os.chown(archive, user.account.uid, user.account.gid)
    return {"default": None, "folder": str(folder), "archive": f"docker-archive:{archive}"}


def _save(root: Path, archive: Path) -> None:
    """Write an archive as `docker save` does, with one layer."""
    work = archive.with_suffix(".work")
    work.mkdir()
    layer, names = work / "layer.tar", sorted(os.listdir(root))
    subprocess.run(["tar", "-cf", layer, "-C", root, *names], check=True)
    layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"]}
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": layers}
    (work / "config.json").write_text(json.dumps(config))
    (work / "manifest.json").write_text(json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]))
    subprocess.run(["tar", "-cf", archive, "-C", work, *os.listdir(work)], check=True)
    shutil.rmtree(work)


def _request(name: str, prefix: str, image: str | None) -> RolloutRequest:
    stage, seconds = FAULTS[name].stage, MARKS[name]
    wait = f"python3 -c '{WAITS}' {seconds}"
    in_eval = (
        f"    import subprocess\n    subprocess.run({wait!r}, shell=True, check=True)\n" if stage == "eval" else ""
    )
    solution = f"def f(n):\n{in_eval}    return n * n\n"
    line = f"{CALL}{wait if stage != 'eval' else 'true'} && cat > /workspace/s.py <<'EOF'\n{solution}EOF\n"
    task: dict[str, Any] = {
        "kind": "code",
        "problem": "Square.",
        "solution": "/workspace/s.py",
        "cases": [{"call": "f(3)", "expect": "9"}],
        "case_seconds": 40,
        "eval_from_snapshot": stage == "files",
    }
    if image is not None:
        task["image"] = image
    body = {
        "id": f"node-{prefix}-{name}",
        "pool": "demo",
        "task": task,
        "agent": {"type": "command", "command": line},
        "budgets": {"eval_seconds": 60} if name == "eval-frozen" else {},
    }
    return RolloutRequest.model_validate(body)


async def _waiting(on: OnRuntime, id: str, seconds: str) -> tuple[Found, int]:
    """Return all processes, and the one of the rollout that waits."""

    async def look() -> tuple[Found, int] | None:
        history = await entries(on, id)
        assert history[-1].event != HistoryEvent.ENDED, history
        return await asyncio.to_thread(whose_command_has, seconds)

    found: tuple[Found, int] = await until(look, 120.0, least=COSTLY_PAUSE, seen=lambda: entries(on, id))
    return found


async def _let_go_on_after(strike: asyncio.Task[None], seconds: str) -> None:
    """Let the processes of this rollout that wait go on, also those of later attempts, once the fault has struck."""
    await asyncio.wait([strike])
    while True:
        if (seen := await asyncio.to_thread(whose_command_has, seconds)) is not None:
            let_go_on(seen[1])
        await asyncio.sleep(COSTLY_PAUSE)


def _chosen(on: OnRuntime, *, all_of_them: bool) -> list[str]:
    root = os.geteuid() == 0
    have = {"": True, "mounts": root, "cgroup2": root, "cache": on.cache is not None}
    have |= {name: name in on.cgroups for name in ("memory", "pids")}
    return [
        name
        for name, fault in FAULTS.items()
        if (all_of_them or name in SHORT[on.user]) and have[fault.needs] and fault.runtime in ("", on.runtime)
    ]


async def test_no_fault_of_a_node_is_scored(
    on_runtime: OnRuntime, images: dict[str, str | None], long_run: bool
) -> None:
    on = on_runtime
    wrong: list[tuple[Any, ...]] = []
    for name in _chosen(on, all_of_them=long_run):
        try:
            ended, told = await _struck(on, name, images)
        except (AssertionError, subprocess.CalledProcessError) as error:
            wrong.append((name, str(error)))
            continue
        print(name, ended.status, ended.reward, ended.attempt, told, dict(ended.metrics), ended.error, ended.notes)
        if ended.reward != 1.0 or "broken_sandbox" in ended.metrics:
            wrong.append((name, ended.status, ended.reward, told, ended.error))
    assert wrong == []


async def _struck(on: OnRuntime, name: str, images: dict[str, str | None]) -> tuple[Trajectory, list[str]]:
    """Return the end of a rollout that the fault hits, and what its history says of the fault."""
    fault = FAULTS[name]
    request = _request(name, f"{on.user}-{on.runtime}", images[fault.image])
    if fault.stage == "init":
        strike = asyncio.create_task(fault.strike(Struck(on, str(request.id), {}, 0)))
        (id,) = await on.client.submit([request])
    else:
        (id,) = await on.client.submit([request])
        strike = asyncio.create_task(fault.strike(Struck(on, id, *await _waiting(on, id, MARKS[name]))))
    going_on = asyncio.create_task(_let_go_on_after(strike, MARKS[name]))
    try:
        (ended,) = await on.yard.gather(on.client, [id])
        await strike
    finally:
        going_on.cancel()
        await asyncio.gather(strike, going_on, return_exceptions=True)
    history = await entries(on, id)
    return ended, [f"{one.event}: {one.reason}, {one.message}" for one in history if one.event in TELLING]
