"""A server with as much as a page may have to show: many stored rollouts and allocations, and objects that change all the time.

The store, the API and the controllers are real. Slurm is simulated (`bench.reconcile`): its jobs run for ever, and a node agent
is connected for each. Events and annotations of pools are written straight into the store, as many a second as a line on
standard input says.

    python -m bench.page_site DATA --rollouts 100000 --allocations 200
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import zstandard
from tokenizers import Tokenizer

from bench.reconcile import PER_POOL, SimulatedSlurm
from rollyard.core.clock import as_datetime
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import ObjectMeta, evolve
from rollyard.kinds.batch import BatchRequest, BatchStatus
from rollyard.kinds.evaluation import EvaluationRequest
from rollyard.kinds.event import Event, InvolvedObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutRequest, Stage, Status
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server_process import main as server_main
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import BatchRecord, GroupRecord, GroupState, RewardSums, SeriesRecord, StepRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from rollyard.trajectory import Outcome, Segment, Turn
from rollyard.trajectory.columns import encode
from rollyard.wire.base import Identity

MODEL = Path(__file__).resolve().parents[1] / "examples" / "tiny_policy" / "model"
LONG, LONG_TOKENS, LONG_TURNS = "long", 131_072, 250
"""A rollout with as many tokens as models read, in several segments."""
OUTPUT, OUTPUT_CHARACTERS = "output", 4_000_000
"""A rollout with a tool's output of this size."""
GROUP, GROUP_OF = "wide", 64
EVALUATION, EVALUATED_TASKS = "suite", 5_000
BATCH, GROUPS, N, STEPS = "step", 3_000, 8, 500
CHUNK = 2_000
KINDS = ("math", "code", "swe", "harbor", "gym")
ENDS = (Status.COMPLETED,) * 6 + (Status.TRUNCATED, Status.FAILED, Status.INFRA_FAILED, Status.CANCELLED)
REASONS = {Status.FAILED: "PromptTooLong", Status.INFRA_FAILED: "SandboxLost"}
PULSE_SECONDS = 0.1


# what is stored


async def store_rollouts(data: Path, count: int, allocations: int) -> None:
    """Make a data folder with `count` ended rollouts, among them those of a batch, of an evaluation and of a wide group."""
    store = await Store.open(data)
    try:
        pools = max(1, allocations // PER_POOL)
        policy = {"model": {"path": str(MODEL)}, "engine": {"external": {"endpoints": []}}}
        await store.objects.create(InferencePool.model_validate({"metadata": {"name": "policy"}, "spec": policy}))
        for n in range(pools):
            spec = {"replicas": PER_POOL if allocations else 0, "inference": {"policy": "policy"}}
            await store.objects.create(RolloutPool.model_validate({"metadata": {"name": f"p{n}"}, "spec": spec}))
        await store.rollouts.transact(_put_batch)
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            await store.rollouts.transact(lambda tx, numbers=numbers: _put_rollouts(tx, numbers, pools))  # type: ignore[misc]
        await store.rollouts.transact(_put_large)
        about = EvaluationRequest(name=EVALUATION, pool="p0", tasks=EVALUATED_TASKS, tasks_digest="0" * 64, k=1)
        await store.evaluations.create("default", about, time.time())
    finally:
        await store.close()


def _put_rollouts(tx: Transaction, numbers: range, pools: int) -> None:
    for n in numbers:
        tx.put(_rollout(n, pools))


def _rollout(n: int, pools: int) -> RolloutRecord:
    """The n-th rollout: the first ones belong to the evaluation, the next ones to the batch, the others to groups of eight."""
    rng = random.Random(n)
    evaluated, of_batch = n < EVALUATED_TASKS, EVALUATED_TASKS <= n < EVALUATED_TASKS + GROUPS * N
    group = EVALUATION if evaluated else f"{BATCH}-g{(n - EVALUATED_TASKS) // N}" if of_batch else f"g{n // N}"
    status = rng.choice(ENDS)
    reason = REASONS.get(status)
    ended = time.time() - rng.random() * 30 * 86_400
    kind = KINDS[n % len(KINDS)]
    return RolloutRecord(
        namespace="default", id=f"{group}.{n}", digest="d", pool=f"p{n % pools}", task_kind=kind, group=group,
        request=RolloutRequest.model_validate(
            {"pool": "p0", "task": {"kind": "math", "problem": "1+1", "answer": "2"}}
        ).model_dump_json(exclude_defaults=True),
        sample_index=n % N, mode="eval" if evaluated else "check" if n % 50 == 7 and not of_batch else "train", priority=0,
        created_at=ended - 60, status=status, stage=Stage.EVAL, reward=rng.random() if status.scored else None,
        error=RolloutError(stage=Stage.RUN, reason=reason, message="it ended so") if reason else None, node=f"n{n % 40}",
        summary={"turns": rng.randrange(1, 60), "tokens": rng.randrange(200, 30_000), "init": 3.0, "run": 40.0},
        metadata={"difficulty": ("easy", "medium", "hard")[n % 3], "split": "train" if n % 10 else "test"},
        task=f"{n // N % 5_000 if not evaluated else n:016x}", finished_at=ended, weights_version="v1",
    )  # fmt: skip


def _put_batch(tx: Transaction) -> None:
    """A batch of thousands of groups, after hundreds of training steps of its series."""
    request = BatchRequest.model_validate(
        {"id": BATCH, "pool": "p0", "n": N, "target": GROUPS, "series": "training",
         "tasks": [{"kind": "math", "problem": "1+1", "answer": "2"}]}
    )  # fmt: skip
    now = time.time()
    tx.batches.put_series(SeriesRecord("default", "training", "d", None, None, 5_000, step=STEPS))
    tx.batches.put_batch(
        BatchRecord(
            "default", BATCH, "d", request.model_dump_json(), "p0", "training", now - 900, status=BatchStatus.COMPLETED,
            ended_at=now, delivered=GROUPS, drawn=GROUPS, compared=GROUPS, differing=GROUPS, step=STEPS - 1,
        )
    )  # fmt: skip
    for n in range(GROUPS):
        tx.batches.put_group(
            GroupRecord("default", f"{BATCH}-g{n}", "training", n, "p0", N, n % 5_000, 0, now - 900, 0, BATCH,
                        GroupState.DELIVERED, n + 1)
        )  # fmt: skip
    sums = RewardSums(32, 256, 128.0, 90.0, 10.0, 256 * 900, 2_000, 9_000.0, 700)
    for n in range(STEPS):
        began = now - (STEPS - n) * 300
        tx.batches.put_training_step(
            StepRecord("default", "training", n, BATCH, began, began + 280, replace(sums, rewards=90 + n / 10), sums)
        )


def _put_large(tx: Transaction) -> None:
    """The rollouts whose trajectories are opened."""
    rng = random.Random(0)
    outcomes = {LONG: long_outcome(LONG_TOKENS, LONG_TURNS), OUTPUT: long_outcome(4_096, 4, output=OUTPUT_CHARACTERS)}
    wide = {f"{GROUP}.{n}": long_outcome(8_192, 20) for n in range(GROUP_OF)}
    for n, (id, outcome) in enumerate({**outcomes, **wide}.items()):
        plain, result = _rollout(10**6 + n, 1), tx.add_blob(zstandard.compress(encode([outcome])))
        tx.put(
            replace(
                plain, id=id, group=GROUP if id in wide else None, sample_index=n, task="f" * 16, mode="train",
                status=Status.COMPLETED, reward=rng.random(), error=None, result=result,
            )
        )  # fmt: skip


def long_outcome(tokens: int, turns: int, *, output: int = 2_000) -> Outcome:
    """A conversation whose ids are those of real words. `output`: characters of a tool's output."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    rng = random.Random(1)
    known = rng.choices(range(tokenizer.get_vocab_size()), k=tokens)
    each = tokens // turns
    segments, made = [], []
    cut = max(1, turns // 3)
    for first in range(0, turns, cut):
        ids = known[first * each : min(first + cut, turns) * each]
        mask = [int(i % each >= each // 2) for i in range(len(ids))]
        logprobs = [float(np.float32(-rng.random() * 3)) if m else None for m in mask]
        versions = [f"v{1 + i * 3 // len(ids)}" if m else None for i, m in enumerate(mask)]
        segments.append(
            Segment(token_ids=ids, loss_mask=mask, logprobs=logprobs, weights_version=versions, prompt_length=each // 2)
        )
        for n in range(len(ids) // each):
            line = "the file has 12 lines and the test fails at the third one\n"
            made.append(
                Turn(
                    segment=len(segments) - 1, prompt_length=n * each + each // 2, response_length=each - each // 2,
                    text=f"<think>{line * 4}</think>I look at it.", finish_reason="stop",
                    tool_calls=[{"name": "bash", "arguments": {"command": "cat a.txt"}}],
                    tool_results=[line * (output // len(line) + 1)],
                )
            )  # fmt: skip
    return Outcome(
        status=Status.COMPLETED,
        reward=1.0,
        node="n",
        segments=segments,
        turns=made,
        breaks={"template": len(segments) - 1},
    )


# the server


class BusyServer(server_main.RollyardServer):
    """A server whose objects change as often as standard input says."""

    async def run_background(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run_background())
            tasks.create_task(self._connect_node_agents())
            tasks.create_task(self._change())

    async def _connect_node_agents(self) -> None:
        """Play a node agent for each allocation that has a job."""
        known: set[str] = set()
        while True:
            for found in (await self.store.objects.list_objects("Allocation"))[0]:
                if isinstance(found, Allocation) and found.status.job_id and found.metadata.uid not in known:
                    known.add(found.metadata.uid)
                    meta, job = found.metadata, found.status.job_id
                    identity = Identity(
                        allocation=meta.name,
                        namespace=meta.namespace,
                        uid=meta.uid,
                        job_id=job,
                        instance="bench",
                        node="n1",
                    )
                    key = PoolKey(meta.namespace, found.spec.pool.name)
                    self.parts.node_agents.connect(
                        ConnectedNodeAgent(identity, key, lambda message: None, expel=lambda: None)
                    )
            await asyncio.sleep(0.5)

    async def _change(self) -> None:
        """Change objects, as many a second as the last line of standard input says."""
        rate = 0.0
        lines = _lines()
        line = asyncio.ensure_future(anext(lines))
        due, n = time.monotonic(), 0
        while True:
            if line.done():
                rate, due = float(line.result()), time.monotonic()
                line = asyncio.ensure_future(anext(lines))
            some = range(n, n + round(rate * PULSE_SECONDS))
            await asyncio.gather(*(self._annotate(one) if one % 2 else self._report(one) for one in some))
            n, due = some.stop, max(due + PULSE_SECONDS, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _annotate(self, n: int) -> None:
        """Change an allocation, as each report about its job does."""
        allocations = [o for o in (await self.store.objects.list_objects("Allocation"))[0] if isinstance(o, Allocation)]
        if not allocations:
            return
        one = allocations[n // 2 % len(allocations)]
        meta = evolve(one.metadata, annotations={"bench": str(n)}, resource_version="")
        await self.store.objects.update(evolve(one, metadata=meta), "spec")

    async def _report(self, n: int) -> None:
        now = as_datetime(time.time())
        about = InvolvedObject(kind="RolloutPool", namespace="default", name="p0")
        await self.store.objects.create(
            Event(metadata=ObjectMeta(name=f"e{time.time_ns()}"), involved_object=about, reason="Bench", message=f"change {n}",
                  type="Warning" if n % 10 == 0 else "Normal", count=1, first_timestamp=now, last_timestamp=now)
        )  # fmt: skip


async def _lines() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode()
    await asyncio.Event().wait()


async def _simulated(name: str, folder: Path) -> SimulatedSlurm:
    return SimulatedSlurm()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--allocations", type=int, default=200)
    given = options.parse_args()
    if not given.data.exists():
        asyncio.run(store_rollouts(given.data, given.rollouts, given.allocations))
    with contextlib.suppress(KeyboardInterrupt):
        server_main.choose_driver = _simulated  # type: ignore[attr-defined,assignment]
        server_main.RollyardServer = BusyServer  # type: ignore[misc]
        raise SystemExit(server_main.run(server_main.ServeOptions(given.data)))


if __name__ == "__main__":
    main()
