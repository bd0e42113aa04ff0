"""Snapshots of sandboxes, and starts from them, beside tar in the same sandbox.

    python -m bench.snapshots [--times 5]

The files are in /workspace: many small ones like those of a program's sources, and one file that zstd cannot shorten. tar
writes them to a pipe that is read to its end, and unpacks them into an empty folder; it does not compress.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from rollyard.core.errors import SandboxStartFailed
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

SPEC = SandboxSpec(None, Limits(cpus=1, memory_bytes=4 << 30, disk_bytes=1 << 30))
FILES = {
    "5,000 files of 2 kB": "mkdir {1..50}; for d in {1..50}; do for f in {1..100}; do head -c 2000 /proc/self/maps > $d/$f; "
    "done; done",
    "one random file of 100 MB": "head -c 100000000 /dev/urandom > random",
}


async def median_ms(call: Callable[[], Awaitable[object]], times: int) -> float:
    seconds = []
    for _ in range(times + 1):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:]) * 1000


async def compare(sandboxes: SandboxFactory, name: str, make: str, times: int) -> None:
    async def bash(sandbox: Sandbox, command: str) -> None:
        assert (await sandbox.bash(command, 300)).exit_code == 0

    async def take() -> None:
        (await sandbox.snapshot()).close()

    async with await sandboxes.start(SPEC) as sandbox, await sandboxes.start(SPEC) as other:
        await bash(sandbox, make)
        ours = await median_ms(take, times)
        theirs = await median_ms(lambda: bash(sandbox, "tar -C /workspace -cf - . | cat > /dev/null"), times)
        with await sandbox.snapshot() as snapshot:
            megabytes = snapshot.archive_bytes / 1e6
            back = await median_ms(lambda: other.restore(snapshot.file), times)
            size = snapshot.size / 1e6
        await bash(sandbox, "tar -C /workspace -cf /tmp/all.tar .")
        unpack = "rm -rf /tmp/out && mkdir /tmp/out && tar -C /tmp/out -xf /tmp/all.tar"
        theirs_back = await median_ms(lambda: bash(sandbox, unpack), times)
    saved = f"{ours:>9.0f}{megabytes / ours * 1000:>9.0f}{theirs:>9.0f}{ours / theirs:>8.2f}"
    restored = f"{back:>9.0f}{theirs_back:>9.0f}{back / theirs_back:>8.2f}"
    print(f"  {name:<28}{megabytes:>8.0f}{size:>8.1f}{saved}{restored}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians")
    names: tuple[RuntimeName, ...] = ("apptainer", "bubblewrap")
    for runtime in names:
        try:
            sandboxes = SandboxFactory(find_runtime(runtime))
        except SandboxStartFailed as error:
            print(f"left out: {runtime}: {error}")
            continue
        print(
            f"\n{runtime:<30}{'MB':>8}{'stored':>8}{'save ms':>9}{'MB/s':>9}{'tar ms':>9}{'ratio':>8}"
            f"{'start ms':>9}{'tar ms':>9}{'ratio':>8}"
        )
        async with sandboxes:
            for name, make in FILES.items():
                await compare(sandboxes, name, make, chosen.times)


if __name__ == "__main__":
    asyncio.run(main())
