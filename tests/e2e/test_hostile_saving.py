"""Agents whose files are hard to save: each costs itself alone, and the history says what was not saved.

The second call of each is stopped at its time limit, so no other sandbox comes to the same files by its calls. A snapshot is
due behind it by the rule of costs, and the next lease begins with it where there is one.
"""

from __future__ import annotations

import asyncio
import sqlite3
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


NAMES = {f"{name}-agent": turns_of(work) for name, work in HOSTILE.items()} | {
    "neighbour-agent": [
        call("bash", command="true && printf %s NONCE > f0"),
        *(call("bash", command="sleep 1 && printf %s -NONCE >> f0") for _ in range(12)),
        ANSWER,
    ]
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hostile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    policy = scripted_pool(yard.folder, MODEL, NAMES)
    width = {"min": len(NAMES), "max": len(NAMES)}
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
    asked = [
        RolloutRequest.model_validate(
            {"id": name, "pool": "demo", "task": stem_task(name), "agent": {"tool_timeout_seconds": LONG_SECONDS}}
        )
        for name in NAMES
    ]
    (agent,) = yard.processes("node-agent", "--allocation")
    before = peak_mib(agent)
    ids = await client.submit(asked)

    tried = set[str]()

    async def all_tried() -> bool:
        for id in {f"{name}-agent" for name in HOSTILE} - tried:
            if id in await asyncio.to_thread(snapshots, yard) or told(await client.rollout_history(id)):
                tried.add(id)
        return len(tried) == len(HOSTILE)

    await yard.until(all_tried, 900.0)
    peak = peak_mib(agent)
    print(f"\nnode agent: {before} MiB before the first rollout, at most {peak} MiB")
    assert peak - before < MOST_MIB
    damage(yard, snapshots(yard)["damaged-agent"])
    kill(agent)
    ended = {one.id.removesuffix("-agent"): one for one in await yard.gather(client, ids, 900)}
    histories = {name: told(await client.rollout_history(f"{name}-agent")) for name in ended}
    for name, one in ended.items():
        print(f"{name}: {[r.sentence for r in one.resumptions]}; told: {histories[name] or '-'}")
        assert (one.reward, one.error) == (1.0, None), name
        files_after(one.turns)  # it compares what `cat` has shown
        last = one.resumptions[-1] if one.resumptions else None
        assert last is None or last.snapshot or histories[name] or "damaged" in str(last.why), name
    assert any(text in histories["huge"] for text in ("at most 67108864 bytes", "it took longer than"))
    for name in ("plain", "links"):
        assert ended[name].resumptions[-1].snapshot
    damaged = ended["damaged"].resumptions[-1]  # it begins again behind the only call that can be run again
    assert (damaged.turn, damaged.snapshot) == (1, None)
    assert "is damaged: its digest does not match" in str(damaged.why)
    print(calls(ended["neighbour"]))
    assert any(LOST in result for turn in ended["plain"].turns for result in turn.tool_results)


def calls(one: Trajectory) -> str:
    """Return the seconds of the calls that wait for a second."""
    seconds = sorted(turn.timings["tools"] for turn in one.turns if "sleep 1 " in turn.text)
    return f"calls of 1 s took {seconds[len(seconds) // 2]:.2f} s in the middle, {seconds[-1]:.2f} s at most"
