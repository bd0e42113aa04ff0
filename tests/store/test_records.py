"""Rollouts in the store: sequence, cursors, queues, counts, blobs, group commit, and what a failing disk does."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.clock import SystemClock
from rollyard.core.errors import Conflict, Unavailable
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.store.base import BlobRef, RolloutFilter, RolloutRecord
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from tests.support.make import rollout as record

POOL = [PoolKey("default", "p")]
INIT = [Stage.INIT]


async def put(store: Store, *records: RolloutRecord) -> list[RolloutRecord]:
    return await store.rollouts.transact(lambda tx: [tx.put(r) for r in records])


def ended(before: RolloutRecord, status: Status = Status.COMPLETED, reward: float | None = 1.0) -> RolloutRecord:
    return replace(before, status=status, reward=reward, holder=None, finished_at=2.0, stage=Stage.EVAL)


async def test_a_record_comes_back_as_it_was_put(store: Store) -> None:
    full = record(
        group="g", sample_index=3, priority=-5, status=Status.RUNNING, stage=Stage.EVAL, attempt=2, faults=1, losses=1,
        fence=4, holder="u/i", node="n1", endpoints={"policy": "e1"}, queued_at=1.5, not_before=2.5, queued_seconds=0.25,
        result=BlobRef("00000001-0000.pack", 5, 6, "ab"), error=RolloutError(stage=Stage.RUN, reason="X", message="ü"),
        summary={"turns": 2, "run": 0.5},
    )  # fmt: skip
    [stored] = await put(store, full)
    assert stored == replace(full, seq=stored.seq)
    assert stored.seq > 0
    assert await store.rollouts.get("default", "r") == stored
    assert await store.rollouts.get("other", "r") is None


async def test_suspicious_rewards_are_found(store: Store) -> None:
    seen = [{"metrics": {"suspicious": number}} for number in (1.0, 0.0, 2.0)] + [{}]
    made = [ended(replace(record(f"r{n}"), summary=summary)) for n, summary in enumerate(seen)]
    await put(store, *made, ended(replace(record("none"), summary=seen[0]), reward=0.0))
    found = await store.rollouts.list_rollouts(RolloutFilter("default", "p", suspicious=True))
    assert [one.id for one in found] == ["r0", "r2"]


async def test_sequence_and_cursor_are_given_by_the_store(store: Store) -> None:
    made = await put(store, *(record(f"r{n}") for n in range(4)))
    assert [r.seq for r in made] == [1, 2, 3, 4]
    done = [(await put(store, ended(made[n])))[0] for n in (2, 0, 3)]
    assert [r.cursor for r in done] == [1, 2, 3]
    assert [r.id for r in await store.rollouts.finished(0, 10)] == ["r2", "r0", "r3"]
    assert [r.id for r in await store.rollouts.finished(1, 1)] == ["r0"]


async def test_a_terminal_record_is_never_replaced(store: Store) -> None:
    [made] = await put(store, record())
    [done] = await put(store, ended(made))
    for change in (replace(done, reward=0.0), replace(done, status=Status.QUEUED, cursor=None), ended(made)):
        with pytest.raises(Conflict, match="has ended"):
            await put(store, change)
    assert await store.rollouts.get("default", "r") == done
    assert await store.rollouts.counts("default") == {(Stage.EVAL, Status.COMPLETED): 1}


async def test_the_queue_is_in_order(store: Store) -> None:
    await put(
        store,
        record("low", priority=-1), record("first"), record("second"), record("high", priority=9),
        record("later", not_before=100.0), record("held", holder="u/i", status=Status.RUNNING),
        record("scored", stage=Stage.EVAL, priority=-9), record("elsewhere", pool="q"),
    )  # fmt: skip
    both = [Stage.INIT, Stage.EVAL]

    async def queue(now: float, limit: int = 10, stages: list[Stage] = both) -> list[str]:
        return [r.id for r in await store.rollouts.transact(lambda tx: tx.queued(POOL, stages, now, limit))]

    assert await queue(50.0) == ["scored", "high", "first", "second", "low"]
    assert await queue(100.0) == ["scored", "high", "first", "second", "later", "low"]
    assert await queue(50.0, limit=2) == ["scored", "high"]
    assert await queue(50.0, stages=INIT) == ["high", "first", "second", "low"]
    two = [*POOL, PoolKey("default", "q")]
    found = await store.rollouts.transact(lambda tx: tx.queued(two, INIT, 50.0, 4))
    assert [r.id for r in found] == ["high", "first", "second", "elsewhere"]


async def test_the_queue_can_be_read_on_and_for_some_kinds_alone(store: Store) -> None:
    await put(
        store,
        record("low", priority=-1), record("first"), record("code", task_kind="code"), record("high", priority=9),
        record("scored", stage=Stage.EVAL, priority=-9), record("last", task_kind="code", priority=-1),
    )  # fmt: skip

    async def queue(kinds: set[str] | None = None, after: RolloutRecord | None = None) -> list[RolloutRecord]:
        return await store.rollouts.transact(lambda tx: tx.queued(POOL, INIT, 50.0, 10, kinds=kinds, after=after))

    whole = await queue()
    assert [r.id for r in whole] == ["high", "first", "code", "low", "last"]
    for number, one in enumerate(whole, start=1):
        assert await queue(after=one) == whole[number:]
    assert [r.id for r in await queue({"code"})] == ["code", "last"]
    assert [r.id for r in await queue({"math"}, whole[0])] == ["first", "low"]
    assert await queue({"math", "code"}) == whole
    assert await queue(set()) == []


async def test_records_of_a_holder(store: Store) -> None:
    running = {"status": Status.RUNNING, "endpoints": {"policy": "e1"}}
    await put(
        store,
        record("a", holder="u/1", **running), record("b", holder="u/2", **running),
        record("c", holder="u/1", status=Status.RUNNING, endpoints={"policy": "e2", "judge": "e1"}),
        record("d", holder="u/1", stage=Stage.EVAL, **running), record("e"),
    )  # fmt: skip
    held = await store.rollouts.transact(lambda tx: (tx.held(), tx.held("u/1"), tx.held("u/9")))
    assert [{r.id for r in some} for some in held] == [{"a", "b", "c", "d"}, {"a", "c", "d"}, set()]


async def test_lists_are_filtered_by_metadata(store: Store) -> None:
    odd: dict[str, Any] = {"level": 3, "split": None, "tags": ["a"], "note": "x" * 600, "share": 2.0, "ok": True}
    made = await put(
        store,
        record("a", metadata={"level": "3", "source": "x=y"}), record("b", metadata=odd), record("c"),
        record("d", pool="other", metadata={"level": 3, "source": "x=y"}), record("e", metadata={"level": 4}),
        record("f", namespace="other", metadata={"level": 3}),
    )  # fmt: skip
    await put(store, ended(made[1]))

    async def ids(*items: str, **more: Any) -> list[str]:
        found = await store.rollouts.list_rollouts(RolloutFilter("default", metadata=items, **more))
        assert [one.metadata for one in found] == [r.metadata for r in made if r.id in {one.id for one in found}]
        return [one.id for one in found]

    assert await ids("level=3") == ["a", "b", "d"]
    assert await ids("level=3", limit=2) == ["a", "b"]
    assert await ids("level=3", after_seq=made[0].seq) == ["b", "d"]
    assert await ids("level=3", "source=x=y") == ["a", "d"]
    assert await ids("level=3", "source=x=y", pool="other", status=(Status.QUEUED,)) == ["d"]
    assert await ids("level=3", status=(Status.COMPLETED,)) == ["b"]
    for item in ("split=null", "share=2", "ok=true"):
        assert await ids(item) == ["b"]
    assert await ids('tags=["a"]') == await ids("level=5") == await ids("level=3", "level=4") == []


async def test_lists_are_filtered_and_paged(store: Store) -> None:
    made = await put(store, *(record(f"r{n}", pool="pq"[n % 2], group=f"g{n // 3}") for n in range(6)))
    await put(store, ended(made[1]), ended(made[4], Status.FAILED, None), record("x", namespace="other"))

    async def ids(**conditions: object) -> list[str]:
        return [r.id for r in await store.rollouts.list_rollouts(RolloutFilter(**conditions))]  # type: ignore[arg-type]

    assert await ids() == ["r0", "r1", "r2", "r3", "r4", "r5", "x"]
    assert await ids(namespace="default", pool="q") == ["r1", "r3", "r5"]
    assert await ids(namespace="default", group="g1") == ["r3", "r4", "r5"]
    assert await ids(status=(Status.COMPLETED, Status.FAILED)) == ["r1", "r4"]
    assert await ids(namespace="default", after_seq=made[1].seq, limit=2) == ["r2", "r3"]
    assert [r.id for r in await store.rollouts.finished(0, 9, "default", "g1")] == ["r4"]
    assert await store.rollouts.finished(0, 9, "other") == []


async def test_counts_and_the_mean_reward(store: Store) -> None:
    assert await store.rollouts.reward_mean("default") is None
    made = await put(store, *(record(f"r{n}", group="g" if n < 2 else None) for n in range(4)))
    await put(store, ended(made[0], reward=1.0), ended(made[1], reward=0.0), ended(made[2], Status.FAILED, None))
    assert await store.rollouts.counts("default", "p") == {
        (Stage.EVAL, Status.COMPLETED): 2,
        (Stage.EVAL, Status.FAILED): 1,
        (Stage.INIT, Status.QUEUED): 1,
    }
    assert await store.rollouts.counts("default", group="g") == {(Stage.EVAL, Status.COMPLETED): 2}
    assert await store.rollouts.counts("default", "none") == {}
    means = [await store.rollouts.reward_mean("default", group=g) for g in (None, "g", "none")]
    assert means == [0.5, 0.5, None]


async def test_a_change_that_fails_undoes_only_itself(store: Store) -> None:
    """They wait together, so they are committed together; the blob of the failed one leaves no hole either."""

    def change(tx: Transaction, n: int) -> BlobRef:
        ref = tx.add_blob(b"blob of %d" % n)
        tx.put(record(f"r{n}", status=Status.COMPLETED, result=ref, reward=1.0))
        if n % 3 == 1:
            raise ValueError(n)
        return ref

    answers = await asyncio.gather(
        *(store.rollouts.transact(lambda tx, n=n: change(tx, n)) for n in range(9)),  # type: ignore[misc]
        return_exceptions=True,
    )
    assert [isinstance(a, ValueError) for a in answers] == [n % 3 == 1 for n in range(9)]
    stored = await store.rollouts.finished(0, 100)
    assert [r.id for r in stored] == [f"r{n}" for n in range(9) if n % 3 != 1]
    assert [r.cursor for r in stored] == list(range(1, 7)), "cursors are dense"
    for row in stored:
        assert row.result is not None
        assert await store.packs.read(row.result) == f"blob of {row.id[1:]}".encode()


async def test_a_blob_is_checked_when_read(store: Store, tmp_path: Path) -> None:
    ref = await store.rollouts.transact(lambda tx: tx.add_blob(b"precious"))
    assert await store.packs.read(ref) == b"precious"
    with pytest.raises(Unavailable, match="damaged"):
        await store.packs.read(replace(ref, length=ref.length - 1))
    with pytest.raises(Unavailable, match="cannot be read"):
        await store.packs.read(replace(ref, pack="00000099-0000.pack"))
    with pytest.raises(Unavailable, match="not a pack"):
        await store.packs.read(replace(ref, pack="../lock"))
    pack = tmp_path / "blobs" / ref.pack
    pack.write_bytes(b"PRECIOUS")
    with pytest.raises(Unavailable, match="damaged"):
        await store.packs.read(ref)


async def fill(store: Store, stored: list[str]) -> Unavailable:
    """Put records, and their ids into `stored`, until the store says that it cannot; answers what it said."""
    while len(stored) < 1000:
        name = f"r{len(stored)}"
        try:
            await put(store, record(name, request="x" * 50_000))
        except Unavailable as error:
            return error
        stored.append(name)
    raise AssertionError("the disk did not fill")


@contextlib.contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of any file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_failing_disk_stores_nothing_and_the_store_goes_on_afterwards(store: Store) -> None:
    kept = await store.rollouts.transact(lambda tx: tx.add_blob(b"before"))
    stored: list[str] = []
    with files_limited_to(1 << 20):
        assert (await fill(store, stored)).retry_after
        with pytest.raises(Unavailable):
            await store.rollouts.transact(lambda tx: (tx.put(record("big")), tx.add_blob(b"b" * (2 << 20))))
        assert await store.rollouts.get("default", "big") is None
    assert stored
    [again] = await put(store, record("after", status=Status.COMPLETED))
    assert [r.id for r in await store.rollouts.list_rollouts(RolloutFilter(limit=1000))] == [*stored, "after"]
    assert (again.cursor, again.seq) == (1, len(stored) + 1)
    ref = await store.rollouts.transact(lambda tx: tx.add_blob(b"after"))
    assert (await store.packs.read(kept), await store.packs.read(ref)) == (b"before", b"after")


FULL_DISK = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.store.test_records import fill_the_disk
asyncio.run(fill_the_disk(Path(sys.argv[1])))
"""


async def fill_the_disk(folder: Path) -> None:
    """Runs in a mount namespace of its own where `folder` is a file system of 8 MiB."""
    store = await Store.open(folder, SystemClock())
    stored: list[str] = []
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * (2 << 20))
    await fill(store, stored)
    with pytest.raises(Unavailable):
        await store.rollouts.transact(lambda tx: tx.add_blob(b"b" * (8 << 20)))
    ballast.unlink()
    await put(store, record("after"))
    await store.close()
    store = await Store.open(folder, SystemClock())
    found = [r.id for r in await store.rollouts.list_rollouts(RolloutFilter(limit=1000))]
    assert found == [*stored, "after"]
    await store.close()


def test_a_full_disk_is_told_and_survived(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    script = 'mount -t tmpfs -o size=8m none "$1" && exec "$2" -c "$3" "$1" "$4"'
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*own, "mount", "-t", "tmpfs", "none", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets us have no mount namespace of our own")
    run = subprocess.run(
        [*own, "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL_DISK, str(root)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
