"""A server with many stored results: time from its start to serving, its memory, a read, and their deletion.

The data folder is made here: ended rollouts of a common size, with columns of a few hundred tokens. The baseline keeps the
same results in a dictionary in memory, which is read from a file at the start.

    python -m bench.results [--results 200000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zstandard

from bench.control_plane import ROOT, outcome
from rollyard.client.async_client import AsyncClient
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.trajectory.columns import encode

TOKENS = 400
CHUNK = 1000
READS = 200
REQUEST = json.dumps({"pool": "p", "task": {"kind": "math", "problem": "x" * 500, "answer": "2"}})
BASELINE = """
import pickle, sys
results = pickle.load(open(sys.argv[1], "rb"))
print("serving", flush=True)
sys.stdin.read()
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=int, default=200_000)
    count = options.parse_args().results
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as name:
        folder = Path(name)
        asyncio.run(_fill(folder / "data", count))
        serve = ["-m", "rollyard.cli.main", "serve", "--data", str(folder / "data")]
        ours = _started(serve, folder)
        theirs = _started(["-c", BASELINE, str(_pickled(folder, count))], folder)
        pruned, freed = asyncio.run(_prune(folder / "data", count))
    print(f"{count} results\n{'':42}{'ours':>10}{'baseline':>10}{'ratio':>8}")
    for row, a, b in (
        ("start to serving, s", ours[0], theirs[0]),
        ("memory, MB", ours[1], theirs[1]),
    ):
        print(f"{row:42}{a:10.2f}{b:10.2f}{a / b:8.2f}")
    print(f"{'after reads and a whole list, MB':42}{ours[2]:10.2f}")
    print(f"{'read of one trajectory, ms':42}{ours[3]:10.2f}")
    print(f"{'deleted a second':42}{pruned:10.0f}")
    print(f"{'MB freed a second':42}{freed:10.0f}")


async def _fill(data: Path, count: int) -> None:
    store = await Store.open(data)
    frame = zstandard.compress(encode([outcome(tokens=TOKENS, prompt=100)]), 1)

    def change(tx: Transaction, start: int) -> None:
        for n in range(start, min(start + CHUNK, count)):
            tx.put(RolloutRecord(
                namespace="default", id=f"r{n}", digest="d" * 64, request=REQUEST, pool="p", task_kind="math",
                group=f"g{n // 8}", sample_index=n % 8, mode="train", priority=0, created_at=time.time(),
                status=Status.COMPLETED, reward=1.0, result=tx.add_blob(frame), finished_at=time.time(),
                summary={"turns": 4, "tokens": TOKENS, "tool_calls": 3, "run": 12.5},
            ))  # fmt: skip

    for start in range(0, count, CHUNK):
        await store.rollouts.transact(lambda tx, start=start: change(tx, start))  # type: ignore[misc]
    await store.close()


def _started(arguments: list[str], home: Path) -> tuple[float, float, float, float]:
    """Seconds until the process serves, its memory in MB then and after work, and milliseconds of a read."""
    env = {**os.environ, "HOME": str(home)}
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
                               env=env, cwd=ROOT, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds, memory = time.perf_counter() - before, _memory_mb(process.pid)
        if not line.startswith("{"):
            return seconds, memory, memory, 0.0
        read = asyncio.run(_read(Path(json.loads(line)["kubeconfig"])))
        return seconds, memory, _memory_mb(process.pid), read
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _memory_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


async def _read(kubeconfig: Path) -> float:
    async with AsyncClient(kubeconfig=kubeconfig) as client:
        total = sum([1 async for _ in client.rollouts()])
        before = time.perf_counter()
        for n in range(READS):
            await client.rollout(f"r{n * total // READS}")
        return (time.perf_counter() - before) / READS * 1000


def _pickled(folder: Path, count: int) -> Path:
    path, text = folder / "results.pickle", outcome(tokens=TOKENS, prompt=100).model_dump_json()
    with path.open("wb") as file:
        pickle.dump({f"r{n}": (REQUEST + " ", f"{text} {n}") for n in range(count)}, file)
    return path


async def _prune(data: Path, count: int) -> tuple[float, float]:
    store = await Store.open(data)
    before = time.perf_counter()
    assert await store.rollouts.prune(lambda pool: time.time()) == count - 1
    pruned = count / (time.perf_counter() - before)
    await store.packs.reclaim(0.0)
    before = time.perf_counter()
    freed = sum([await store.packs.reclaim(0.0) for _ in range(2)])
    seconds = time.perf_counter() - before
    await store.close()
    return pruned, freed / seconds / 1e6


if __name__ == "__main__":
    main()
