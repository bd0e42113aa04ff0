"""A cgroup that limits the memory of processes together, as Slurm sets it for a job."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
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
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return _MOUNT / "memory" / path.lstrip("/")
    return _MOUNT
