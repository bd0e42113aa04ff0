"""Agents whose files are hard to save: each costs itself alone, and the history says what was not saved.

The second call of each is stopped at its time limit, so no other sandbox comes to the same files by its calls. A snapshot is
due behind it by the rule of costs, and the next lease begins with it where there is one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest
from rollyard.store.row_codec import blob_of
from rollyard.trajectory import Trajectory
from tests.support.file_work import ANSWER, LOST, files_after, stem_task
from tests.support.scripted_agent import call
from tests.support.scripted_engine import scripted_pool
from tests.support.yard import MODEL, Yard, end, kill

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long, pytest.mark.slow(400)]

LONG_SECONDS = 40.0
"""Time limit of the calls. A snapshot is due after 33 s."""
DEEP = "for n in {1..200}; do mkdir deep; cd deep; echo x > f; ln f g; done"
LINKS = "ln -s / root; ln -s ../../../../etc out; ln -s loop loop; ln -s /proc/1/root up; mkfifo fifo; ln -s fifo -rf"
ZEROS = "head -c 400000000 /dev/zero > zeros; truncate -s 1T hole"
GROWING = "(while :; do echo grows >> g1; mv g1 g2; mv g2 g1; mkdir t; rmdir t; done) 2> /dev/null & :"
MANY = (
    "import os\nfor n in range(300_000):\n"
    "    if n % 1000 == 0: os.mkdir(f'many{n}'); os.chdir(f'many{n}')\n    open(f'f{n}', 'w').write('x')\n"
    "    if n % 1000 == 999: os.chdir('..')\n"
)
HOSTILE = {
    "plain": "true",
    "damaged": "true",
    "deep": f"({DEEP})",
    "links": LINKS,
    "zeros": ZEROS,
    "growing": GROWING,
    "many": f'python3 -c "{MANY}"',
    "huge": "head -c 2000000000 /dev/urandom > huge",
}
MOST_MIB = 400
"""Greatest growth of a node agent's memory."""


def turns_of(work: str) -> list[str]:
    return [
        call("bash", command="true && printf %s NONCE > f0"),
        call("bash", command=f"{work}; sleep 1000"),
        *(call("bash", command="sleep 15 && printf %s -NONCE >> f0") for _ in range(3)),
        call("bash", command="true && cat f0"),
        ANSWER,
    ]


SHORT = [call("bash", command="sleep 0.5 && printf %s -NONCE >> f0")] * 30
"""Calls of the neighbour, whose latency is measured. It begins with a long one, because the others are saved after 40 s."""
NAMES = {f"{name}-agent": turns_of(work) for name, work in HOSTILE.items()} | {
    f"{name}-agent": [call("bash", command=f"sleep {first} && printf %s NONCE > f0"), *SHORT, ANSWER]
    for name, first in (("alone", 0), ("neighbour", 33))
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hostile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    policy = scripted_pool(yard.folder, MODEL, NAMES)
    width = {"min": len(HOSTILE) + 1, "max": len(HOSTILE) + 1}
    stages = {"init": {"workers": width}, "run": {"workers": width, "timeoutSeconds": 900}}
    try:
        yard.start()
        async with yard.client() as client:
            sandbox = {"disk": "3Gi", "memory": "4Gi"}
            await yard.apply(
                client,
                policy={**policy, "replicas": 1},
                demo={"replicas": 1, "stages": stages, "sandbox": sandbox},
            )
            await yard.ready(client)
            yield yard, client
    finally:
        await end(yard)


def snapshots(yard: Yard) -> dict[str, str]:
    """Return the places of the stored snapshots by rollout."""
    with closing(sqlite3.connect(f"file:{yard.data / 'rollyard.db'}?mode=ro", uri=True)) as db:
        query = "SELECT id, blob FROM resume_states JOIN rollouts ON rollout = seq WHERE blob IS NOT NULL"
        return dict(db.execute(query).fetchall())


def damage(yard: Yard, blob: str) -> None:
    ref = blob_of(blob)
    assert ref is not None
    (pack,) = yard.data.rglob(ref.pack)
    with pack.open("r+b") as file:
        file.seek(ref.offset + ref.length // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def peak_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def told(history: Any) -> str:
    return "; ".join(str(entry.message) for entry in history.entries if entry.event == "SavingStopped")


async def test_what_is_hard_to_save_costs_itself_alone(hostile: tuple[Yard, AsyncClient]) -> None:
    yard, client = hostile
    agent = {"tool_timeout_seconds": LONG_SECONDS, "max_turns": 50}
    asked = {
        name: RolloutRequest.model_validate({"id": name, "pool": "demo", "task": stem_task(name), "agent": agent})
        for name in NAMES
    }
    (process,) = yard.processes("node-agent", "--allocation")
    before = peak_mib(process)
    (alone,) = await yard.gather(client, await client.submit([asked.pop("alone-agent")]), 300)
    ids = await client.submit(list(asked.values()))

    tried = set[str]()

    async def all_tried() -> bool:
        for id in {f"{name}-agent" for name in HOSTILE} - tried:
            if id in await asyncio.to_thread(snapshots, yard) or told(await client.rollout_history(id)):
                tried.add(id)
        return len(tried) == len(HOSTILE)

    await yard.until(all_tried, 900.0)
    peak = peak_mib(process)
    print(f"\nnode agent: {before} MiB before the first rollout, at most {peak} MiB")
    assert peak - before < MOST_MIB
    damage(yard, snapshots(yard)["damaged-agent"])
    kill(process)
    ended = {one.id.removesuffix("-agent"): one for one in await yard.gather(client, ids, 900)}
    histories = {name: told(await client.rollout_history(f"{name}-agent")) for name in ended}
    for name, one in ended.items():
        print(f"{name}: {[r.sentence for r in one.resumptions]}; told: {histories[name] or '-'}")
        assert (one.reward, one.error) == (1.0, None), name
        files_after(one.turns)  # it compares what `cat` has shown
        last = one.resumptions[-1] if one.resumptions else None
        repeated = name == "neighbour"  # none of its calls was stopped
        assert repeated or last is None or last.snapshot or histories[name] or "damaged" in str(last.why), name
    assert any(text in histories["huge"] for text in ("at most 67108864 bytes", "it took longer than"))
    for name in ("plain", "links"):
        assert ended[name].resumptions[-1].snapshot
    damaged = ended["damaged"].resumptions[-1]  # it begins again behind the only call that can be run again
    assert (damaged.turn, damaged.snapshot) == (1, None)
    assert "is damaged: its digest does not match" in str(damaged.why)
    print(f"calls alone: {latency(alone)}; beside the others: {latency(ended['neighbour'])}")
    assert any(LOST in result for turn in ended["plain"].turns for result in turn.tool_results)


def latency(one: Trajectory) -> str:
    """Return the latency of the short calls, without their sleep."""
    seconds = [turn.timings["tools"] - 0.5 for turn in one.turns if "sleep 0.5 " in turn.text]
    p95 = statistics.quantiles(seconds, n=20)[-1]
    return f"median {statistics.median(seconds) * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms of {len(seconds)} calls"
