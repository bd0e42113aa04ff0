"""`rollyard export rollouts` of many rollouts by a real server, to its end: rate, memory of both sides, and the file read back.

The second export loses its server in the middle: it is killed with SIGKILL and started again. Each id, mask and logprob that is
read back must equal the stored one, in the order of the ends, once each. Then one server serves three exports, one after the
other, and its memory is looked at after each.

    python -m bench.export [--rollouts 100000] [--tokens 400]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from bench.control_plane import ROOT, cpu_seconds
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from rollyard.trajectory.parquet import read_parquet

CHUNK = 1000
PROMPT = 50
VOCABULARY = 150_000
LOOK_SECONDS = 0.2
AGAIN = 3
REQUEST = json.dumps({"pool": "p", "task": {"kind": "math", "problem": "x" * 500, "answer": "2"}})


# what is stored


def token_ids(n: int, tokens: int) -> NDArray[np.int64]:
    """Return the ids of the n-th rollout. Neighbours in it have nothing in common, as in a real vocabulary."""
    return (np.arange(tokens) * 7919 + n * 104_729) * 31 % 1_000_003 % VOCABULARY


def logprobs(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    return (-ids / VOCABULARY).astype(np.float32)


def outcome(n: int, tokens: int) -> Outcome:
    ids = token_ids(n, tokens)
    chosen = [float(value) for value in logprobs(ids)]
    mask = [int(i >= PROMPT) for i in range(tokens)]
    segment = Segment(
        token_ids=ids.tolist(), loss_mask=mask, prompt_length=PROMPT,
        logprobs=[value if m else None for value, m in zip(chosen, mask, strict=True)],
        weights_version=["3f2a90cd11e0" if m else None for m in mask],
    )  # fmt: skip
    turn = Turn(
        segment=0, prompt_length=PROMPT, response_length=tokens - PROMPT, text="a word " * (tokens // 2), finish_reason="stop"
    )  # fmt: skip
    return Outcome(status=Status.COMPLETED, reward=1.0, node="bench", segments=[segment], turns=[turn])


async def store_rollouts(data: Path, count: int, tokens: int) -> None:
    store = await Store.open(data)

    def put(tx: Transaction, numbers: range) -> None:
        for n in numbers:
            tx.put(RolloutRecord(
                namespace="default", id=f"r{n}", digest="d" * 64, request=REQUEST, pool="p", task_kind="math",
                group=f"g{n // 8}", sample_index=n % 8, mode="train", priority=0, created_at=time.time(),
                status=Status.COMPLETED, reward=1.0, finished_at=time.time(), summary={"turns": 1, "tokens": tokens},
                result=tx.add_blob(zstandard.compress(encode([outcome(n, tokens)]), 1)),
            ))  # fmt: skip

    try:
        for start in range(0, count, CHUNK):
            await store.rollouts.transact(partial(put, numbers=range(start, min(start + CHUNK, count))))
    finally:
        await store.close()


# both sides


@contextmanager
def server(data: Path, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server; yield it with its kubeconfig."""
    command = [sys.executable, "-m", "rollyard.cli.main", "serve", "--data", str(data)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env={**os.environ, "HOME": str(home)}
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["kubeconfig"]
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Export:
    """Time, CPU time and memory of an export."""

    seconds: float = 0.0
    bytes: int = 0
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    client_mb: list[float] = field(default_factory=list)
    """Resident memory, once each LOOK_SECONDS."""
    server_mb: list[float] = field(default_factory=list)


def export(data: Path, home: Path, output: Path, kill_at: int | None = None) -> Export:
    """Export everything. `kill_at`: size of the unfinished file at which the server is killed and started again."""
    found, began = Export(), time.perf_counter()
    with server(data, home) as (first, kubeconfig):
        client = _client(kubeconfig, output)
        began = time.perf_counter()
        _follow(client, first, found, output, kill_at)
        assert (client.poll() is None) == (kill_at is not None), "the export ended before its server could be killed"
        if kill_at is not None:
            first.send_signal(signal.SIGKILL)
            first.wait()
            with server(data, home) as (second, _):
                _follow(client, second, found, output, None)
    found.seconds, found.bytes = time.perf_counter() - began, output.stat().st_size
    assert client.wait() == 0
    return found


def export_again(data: Path, home: Path, output: Path) -> list[float]:
    """Export everything by one server, again and again. Return the server's memory at the beginning and after each export."""
    with server(data, home) as (serving, kubeconfig):
        megabytes = [resident_mb(serving.pid)]
        for _ in range(AGAIN):
            assert _client(kubeconfig, output).wait() == 0
            megabytes.append(resident_mb(serving.pid))
    return megabytes


def _client(kubeconfig: str, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rollyard.cli.main", "export", "rollouts", "--kubeconfig", kubeconfig]
    return subprocess.Popen([*command, "-o", str(output)], cwd=ROOT)


def _follow(
    client: subprocess.Popen[bytes], serving: subprocess.Popen[str], found: Export, output: Path, kill_at: int | None
) -> None:
    """Look at both until the client ends, or the unfinished file has this size."""
    part = output.with_name(f".{output.name}.part")
    before = cpu_seconds(serving.pid)
    while not _is_ended(client.pid) and not (kill_at and part.exists() and part.stat().st_size >= kill_at):
        found.client_mb.append(resident_mb(client.pid))
        found.server_mb.append(resident_mb(serving.pid))
        time.sleep(LOOK_SECONDS)
    found.client_cpu = cpu_seconds(client.pid)  # of a process that nobody has waited for yet
    found.server_cpu += cpu_seconds(serving.pid) - before
    if _is_ended(client.pid):
        client.wait()


def _is_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process; 0 if it is just ending."""
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1000


def check(output: Path, count: int, tokens: int) -> None:
    """Read the file back. Raises AssertionError unless it has all that was stored."""
    n = 0
    mask = np.arange(tokens) >= PROMPT
    for columns in read_parquet(output):
        numbers = range(n, n + len(columns))
        assert [sample["id"] for sample in columns.samples] == [f"r{i}" for i in numbers]
        ids = np.concatenate([token_ids(i, tokens) for i in numbers])
        assert np.array_equal(columns.token_ids, ids)
        assert np.array_equal(columns.loss_mask, np.tile(mask, len(columns)))
        sampled = columns.loss_mask != 0
        assert np.array_equal(columns.logprobs[sampled], logprobs(ids)[sampled])
        n = numbers.stop
    assert n == count, f"{n} rollouts of {count}"


# the command


def show(name: str, found: Export, count: int) -> None:
    tenth = len(found.client_mb) // 10
    print(f"{name}: {found.seconds:.1f} s, {count / found.seconds:,.0f} rollouts a second, "
          f"{found.bytes / found.seconds / 1e6:.2f} MB/s of the file ({found.bytes / 1e6:.0f} MB)\n"
          f"  CPU, ms a rollout: client {found.client_cpu / count * 1000:.2f}, server {found.server_cpu / count * 1000:.2f}\n"
          f"  MB at a tenth, at the end, greatest: client {found.client_mb[tenth]:.0f}, {found.client_mb[-2]:.0f}, "
          f"{max(found.client_mb):.0f}; server {found.server_mb[tenth]:.0f}, {found.server_mb[-1]:.0f}, "
          f"{max(found.server_mb):.0f}", flush=True)  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--tokens", type=int, default=400)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        data, home, output = Path(folder, "data"), Path(folder), Path(folder, "x.parquet")
        asyncio.run(store_rollouts(data, given.rollouts, given.tokens))
        whole = export(data, home, output)
        check(output, given.rollouts, given.tokens)
        show("export", whole, given.rollouts)
        output.unlink()
        killed = export(data, home, output, kill_at=whole.bytes // 3)
        check(output, given.rollouts, given.tokens)
        show("with a server that is killed in the middle", killed, given.rollouts)
        after = ", ".join(f"{one:.0f}" for one in export_again(data, home, output))
        print(f"MB of one server at its beginning and after each of {AGAIN} exports: {after}", flush=True)
    print(f"load average of the last minute: {os.getloadavg()[0]:.0f}, with these processes")


if __name__ == "__main__":
    main()
