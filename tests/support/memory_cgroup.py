"""Cgroups that limit the memory of processes together, as Slurm sets it for a job, or their number."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.until import until

_MOUNT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Make a cgroup below this process's own; skip the test where that is not allowed. The caller writes process ids into
    its `cgroup.procs`. At the end all its processes must have ended."""
    folder, name = _place(), f"rollyard-test-{secrets.token_hex(4)}"
    made = folder / name
    try:
        made.mkdir()
        for file in ("memory.limit_in_bytes", "memory.max"):
            if (made / file).exists():
                (made / file).write_text(str(limit))
                break
        else:
            made.rmdir()
            pytest.skip("the cgroup of this process has no memory controller")
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield made


async def remove(cgroup: Path) -> None:
    """Remove the cgroup once its processes have ended."""
    await until(lambda: not (cgroup / "cgroup.procs").read_text().strip())
    os.rmdir(cgroup)


@contextlib.asynccontextmanager
async def job_cgroups() -> AsyncIterator[dict[str, Path]]:
    """Make cgroups of the first version for memory and for the number of processes, as far as that is allowed here; return
    them by their controllers. They have no limits. At the end all their processes must have ended."""
    found = {}
    for controller in ("memory", "pids"):
        if (place := _place_in_first_version(controller)) is not None:
            made = place / f"rollyard-test-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                made.mkdir()
                found[controller] = made
    try:
        yield found
    finally:
        for made in found.values():
            await remove(made)


def kernel_kills(cgroup: Path) -> int:
    """Return how many processes the kernel has ended because the cgroup's memory ran out."""
    for file in ("memory.oom_control", "memory.events"):
        if (cgroup / file).exists():
            for line in (cgroup / file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _place() -> Path:
    """Return the folder of this process's own memory cgroup."""
    return _place_in_first_version("memory") or _MOUNT


def _place_in_first_version(controller: str) -> Path | None:
    """Return the folder of this process's own cgroup with a controller, in the first version of cgroups."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller:
            return _MOUNT / controller / path.lstrip("/")
    return None


@contextlib.contextmanager
def second_version_cgroup(pids: Sequence[int]) -> Iterator[Path]:
    """Move processes into a new cgroup of the second version."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    top = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
    made = top / f"rollyard-test-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (made / "cgroup.procs").write_text(str(pid))
        yield made
    finally:
        for pid in (made / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (top / "cgroup.procs").write_text(pid)
        os.rmdir(made)
