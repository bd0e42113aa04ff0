"""Faults of a node, of its parts and of its surroundings, as a test makes them while a rollout is at work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import NotFound
from rollyard.kinds.rollout_history import HistoryEntry, HistoryEvent
from tests.e2e.one_yard.conftest import OnRuntime
from tests.support.host_processes import descendants, host_processes
from tests.support.memory_cgroup import second_version_cgroup
from tests.support.sandbox_processes import (
    Found,
    agent,
    command_line,
    guard,
    launcher,
    node_agent,
    starter,
    whole_sandbox,
)
from tests.support.until import until

LEFT = 256 << 20
"""Bytes that a job with too little memory has left: less than the memory guard keeps free."""
HOG = """
import sys, time
open(sys.argv[1], "w").write("0")
kept = []
while True:
    kept.append(b"1" * (8 << 20))
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Struck:
    """A rollout at work, and the process in its sandbox that waits meanwhile."""

    on: OnRuntime
    id: str
    found: Found
    pid: int

    async def go_on(self) -> None:
        """Let the process go on."""
        await until(lambda: let_go_on(self.pid))

    async def ended(self) -> None:
        """Wait until the process has ended."""
        mark = self.found[self.pid]
        await until(lambda: not mark.runs)

    async def told(self) -> None:
        """Wait until an attempt has ended, or the rollout waits for its image, or is over."""
        await self.on.yard.until(self._told)

    async def _told(self) -> bool:
        with contextlib.suppress(NotFound):  # it is not submitted yet
            seen = {entry.event for entry in await entries(self.on, self.id)}
            return bool(seen & {*TELLING, HistoryEvent.ENDED})
        return False


TELLING = (HistoryEvent.FAULT, HistoryEvent.LEASE_LOST, HistoryEvent.HANDED_BACK, HistoryEvent.IMAGE_MISSING)
Strike = Callable[[Struck], Coroutine[Any, Any, None]]


def let_go_on(pid: int) -> bool:
    """Send the signal for which a process waits; return False if it does not wait for it yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
        if not caught >> (signal.SIGUSR1 - 1) & 1:
            return False
        os.kill(pid, signal.SIGUSR1)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it is over
    return True


async def entries(on: OnRuntime, id: str) -> list[HistoryEntry]:
    return (await on.client.rollout_history(id)).entries


# memory and processes of the job


@contextlib.asynccontextmanager
async def _little_memory(struck: Struck) -> AsyncIterator[Path]:
    """Limit the memory of the job to hardly more than it uses."""
    cgroup = struck.on.cgroups["memory"]
    cache = next(
        int(line.split()[1])
        for line in (cgroup / "memory.stat").read_text().splitlines()
        if line.startswith("total_inactive_file ")
    )
    used = int((cgroup / "memory.usage_in_bytes").read_text()) - cache
    (cgroup / "memory.limit_in_bytes").write_text(str(used + LEFT))
    try:
        yield cgroup
    finally:
        (cgroup / "memory.limit_in_bytes").write_text("-1")


async def little_memory(struck: Struck) -> None:
    """The memory guard ends processes of the sandbox, which is within its limit."""
    async with _little_memory(struck):
        await struck.ended()


async def kernel_takes_memory(struck: Struck) -> None:
    """Somebody else fills the memory of the job, and the kernel ends processes before the memory guard does."""
    watcher = guard(struck.found, struck.pid)
    os.kill(watcher, signal.SIGSTOP)
    try:
        async with _little_memory(struck) as cgroup:
            hog = subprocess.Popen([sys.executable, "-c", HOG, str(cgroup / "cgroup.procs")])
            try:
                await struck.ended()
            finally:
                hog.kill()
                hog.wait()
    finally:
        os.kill(watcher, signal.SIGCONT)


async def no_more_processes(struck: Struck) -> None:
    """The job may start no further process, until the waiting one has tried to."""
    cgroup = struck.on.cgroups["pids"]
    (cgroup / "pids.max").write_text((cgroup / "pids.current").read_text().strip())
    try:
        await struck.go_on()
        await struck.ended()
    finally:
        (cgroup / "pids.max").write_text("max")


# disk, images, files of the node


async def full_disk(struck: Struck) -> None:
    assert struck.on.cache is not None
    fill = struck.on.cache / "fill"
    with open(fill, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    try:
        if struck.found:
            await struck.go_on()
        await struck.told()
    finally:
        fill.unlink()


async def image_deleted(struck: Struck) -> None:
    for entry in _image_roots(struck):
        shutil.rmtree(entry.parent)


async def image_damaged(struck: Struck) -> None:
    """Somebody deletes old files: the Python of the image lacks a part, and does not start."""
    for root in _image_roots(struck):
        for part in (root / "usr/lib").glob("python3*/encodings"):
            shutil.rmtree(part)


def _image_roots(struck: Struck) -> list[Path]:
    assert struck.on.cache is not None
    found = list(struck.on.cache.glob("image-cache/*/*/root"))
    assert found
    return found


async def cache_purged(struck: Struck) -> None:
    """Somebody empties the node's scratch folder, in which Apptainer is not."""
    assert struck.on.cache is not None
    for path in struck.on.cache.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "apptainer":
            path.unlink()


async def runtime_gone(struck: Struck) -> None:
    """The folder with the runtime's program is away for a while."""
    assert struck.on.cache is not None
    place = struck.on.cache / "apptainer"
    target = place.readlink()
    place.unlink()
    try:
        await struck.go_on()
        await struck.told()
    finally:
        place.symlink_to(target)


async def folder_away(struck: Struck) -> None:
    """The image's folder is away for a while, as after a failed mount."""
    image = struck.on.yard.folder / "image"
    away = image.with_name("away")
    image.rename(away)
    try:
        await struck.go_on()
        await struck.told()
    finally:
        away.rename(image)


# the sandbox and its processes


async def start_killed(struck: Struck) -> None:
    """The next launcher is killed as soon as there is one."""
    above, mine = node_agent(struck.found, struck.pid), launcher(struck.found, struck.pid)

    def next_one() -> int | None:
        for one in host_processes():
            if one.parent == above and one.pid != mine and not _is_ours(one.pid):
                return one.pid
        return None

    await struck.go_on()
    os.kill(await until(next_one, every=0.001), signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    return any(word in command_line(pid) for word in (b"sandbox/starter", b"memory_guard", b"rollyard."))


async def starter_stopped(struck: Struck) -> None:
    os.kill(starter(struck.found, struck.pid), signal.SIGSTOP)


async def sandbox_killed_at_once(struck: Struck) -> None:
    """Every process of the sandbox is killed in one moment, as `cgroup.kill` does."""
    with second_version_cgroup(whole_sandbox(struck.found, struck.pid)) as cgroup:
        (cgroup / "cgroup.kill").write_text("1")
        await struck.ended()


async def frozen(struck: Struck) -> None:
    """No process of the sandbox gets a CPU, until somebody notices."""
    with second_version_cgroup(whole_sandbox(struck.found, struck.pid)) as cgroup:
        (cgroup / "cgroup.freeze").write_text("1")
        try:
            await struck.told()
        finally:
            (cgroup / "cgroup.freeze").write_text("0")


async def unmounted(struck: Struck) -> None:
    """Our own files are gone from the sandbox."""
    _in_mounts_of(struck, "umount", "--lazy", "/opt/rollyard")


async def read_only(struck: Struck) -> None:
    _in_mounts_of(struck, "mount", "-o", "remount,ro", "/")


def _in_mounts_of(struck: Struck, *command: str) -> None:
    pid = agent(struck.found, struck.pid)
    subprocess.run(["nsenter", "--target", str(pid), "--mount", "--pid", "--root", *command], check=True)


# the job, the node agent, the server


async def job_cancelled(struck: Struck) -> None:
    yard = struck.on.yard
    (job,) = [one for one in await yard.jobs() if "-rp-" in one.name]
    await yard.driver.cancel([job.id])
    await struck.told()


async def node_lost(struck: Struck) -> None:
    """Every process of the node is killed at once."""
    above = node_agent(struck.found, struck.pid)
    for pid in (above, *(one.pid for one in descendants(above))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def node_agent_stopped(struck: Struck) -> None:
    above = node_agent(struck.found, struck.pid)
    os.kill(above, signal.SIGSTOP)
    try:
        await struck.told()
    finally:
        os.kill(above, signal.SIGCONT)


async def server_killed(struck: Struck) -> None:
    await asyncio.to_thread(struck.on.yard.kill)
    await asyncio.to_thread(struck.on.yard.start)
    struck.on.enter_cgroups()


@dataclass(frozen=True)
class Fault:
    stage: str
    """Stage that the fault hits: `run`; `eval`; `between`, while RUN still goes on, so that EVAL meets it; `files`, the
    same for an EVAL with the agent's files; `init`, before the rollout begins."""
    strike: Strike
    needs: str = ""
    """Needs of the fault: `memory`, `pids` (a cgroup), `cache` (a small file system), `mounts`, `cgroup2`."""
    image: str = "default"
    """Image of the task: that of the pool, `archive` (unpacked into the cache) or `folder`."""
    runtime: str = ""
    """Runtime that has this fault; empty: all."""


FAULTS = {
    "run-little-memory": Fault("run", little_memory, "memory"),
    "eval-little-memory": Fault("eval", little_memory, "memory"),
    "run-kernel-takes-memory": Fault("run", kernel_takes_memory, "memory"),
    "eval-kernel-takes-memory": Fault("eval", kernel_takes_memory, "memory"),
    "run-no-more-processes": Fault("run", no_more_processes, "pids"),
    "eval-no-more-processes": Fault("eval", no_more_processes, "pids"),
    "init-full-disk": Fault("init", full_disk, "cache", "archive"),
    "files-full-disk": Fault("files", full_disk, "cache"),
    "between-image-deleted": Fault("between", image_deleted, "cache", "archive"),
    "files-image-deleted": Fault("files", image_deleted, "cache", "archive"),
    "between-image-damaged": Fault("between", image_damaged, "cache", "archive"),
    "files-image-damaged": Fault("files", image_damaged, "cache", "archive"),
    "between-cache-purged": Fault("between", cache_purged, "cache"),
    "between-cache-purged-archive": Fault("between", cache_purged, "cache", "archive"),
    "between-runtime-gone": Fault("between", runtime_gone, "cache", runtime="auto"),
    "between-folder-away": Fault("between", folder_away, "mounts", "folder"),
    "between-start-killed": Fault("between", start_killed),
    "files-start-killed": Fault("files", start_killed),
    "between-starter-stopped": Fault("between", starter_stopped),
    "run-killed-at-once": Fault("run", sandbox_killed_at_once, "cgroup2"),
    "eval-killed-at-once": Fault("eval", sandbox_killed_at_once, "cgroup2"),
    "eval-frozen": Fault("eval", frozen, "cgroup2"),
    "run-unmounted": Fault("run", unmounted, "mounts"),
    "eval-unmounted": Fault("eval", unmounted, "mounts"),
    "run-read-only": Fault("run", read_only, "mounts"),
    "run-job-cancelled": Fault("run", job_cancelled),
    "eval-job-cancelled": Fault("eval", job_cancelled),
    "run-node-lost": Fault("run", node_lost),
    "eval-node-lost": Fault("eval", node_lost),
    "files-node-lost": Fault("files", node_lost),
    "run-node-agent-stopped": Fault("run", node_agent_stopped),
    "eval-node-agent-stopped": Fault("eval", node_agent_stopped),
    "run-server-killed": Fault("run", server_killed),
    "eval-server-killed": Fault("eval", server_killed),
}
