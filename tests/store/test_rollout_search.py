"""Searches among rollouts, and sums over them, give what a look at each record gives."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.kinds.task_metadata import items
from rollyard.server.rollouts.history import history_of, with_entry
from rollyard.store.base import RolloutFilter, RolloutRecord, RolloutSearch, SortField
from rollyard.store.batch_records import GroupRecord, GroupState
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.store import Store
from tests.support.make import rollout

ENDED_FIELD = {SortField.ENDED: "finished_at"}


def made(number: int, rng: random.Random) -> RolloutRecord:
    status = rng.choice([*Status, *[Status.COMPLETED] * 4])
    ended, reason = status.terminal, rng.choice(["SandboxLost", "TaskError"])
    summary = {"turns": rng.randint(1, 3), "tokens": rng.randint(0, 50), "run": rng.random()} if status.scored else {}
    return rollout(
        f"{rng.choice('ab')}-{number}",
        pool=rng.choice("pq"),
        task_kind=rng.choice(["math", "code"]),
        mode=rng.choice(["train", "train", "eval", "check"]),
        group=rng.choice([None, "g0", "g1", "g2"]),
        task=rng.choice(["t0", "t1", "t2", ""]),
        metadata=rng.choice([{}, {"level": 1, "source": "x"}, {"level": 2}, {"level": "2", "levels": 3}]),
        status=status,
        stage=Stage.EVAL if ended else Stage.INIT,
        reward=rng.choice([0.0, 0.5, 1.0]) if status.scored else None,
        error=RolloutError(reason=reason, message="m") if ended and not status.scored else None,
        summary={**summary, "metrics": rng.choice([{}, {"suspicious": 1.0}]), **profile(rng)} if summary else {},
        finished_at=float(rng.randint(10, 20)) if ended else None,
        **losses(rng),
    )


LOSS = (HistoryEvent.FAULT, HistoryEvent.LEASE_LOST)


def losses(rng: random.Random) -> dict[str, Any]:
    """Fields `lost` and `history`. A long history lacks entries in the middle."""
    record = rollout("r")
    for _ in range(rng.choice([0, 0, 1, 3, 40])):
        event = rng.choice([*LOSS, HistoryEvent.LEASED, HistoryEvent.HANDED_BACK])
        reason = rng.choice([None, "SandboxLost", 'a"b', "one\ntwo, [3]"])
        lost = record.lost + (event in LOSS)
        record = replace(record, lost=lost, history=with_entry(record, 1.0, event, reason=reason))
    return {"lost": record.lost, "history": record.history}


def reasons(record: RolloutRecord) -> set[str | None]:
    """Reasons of the losses that are in the history."""
    return {one.reason for one in history_of(record).entries if one.event in LOSS}


def profile(rng: random.Random) -> dict[str, Any]:
    """Part of a summary: tools with failed calls; of an older node agent there is none."""
    used = [{"tool": tool, "calls": 2, "judged": 2, "failed": rng.randint(0, 1)} for tool in ("bash", 'a"b')]
    return rng.choice([{}, {"profile": {}}, {"profile": {"by_tool": used}}, {"profile": {"by_tool": used[:1]}}])


def failed(record: RolloutRecord, tool: str) -> bool:
    used = record.summary.get("profile", {}).get("by_tool", [])
    return any(one["tool"] == tool and one["failed"] for one in used)


def matches(record: RolloutRecord, filter: RolloutFilter, search: RolloutSearch) -> bool:
    wanted = {"pool": filter.pool, "group": filter.group, "task_kind": search.kind, "mode": search.mode}
    wanted |= {"reason": search.reason, "task": search.task}
    at, reward = record.finished_at, record.reward
    return (
        all(value is None or getattr(record, name) == value for name, value in wanted.items())
        and (not filter.status or record.status in filter.status)
        and (search.since is None or at is None or at >= search.since)
        and (search.until is None or (at is not None and at < search.until))
        and (search.min_reward is None or (reward is not None and reward >= search.min_reward))
        and (search.max_reward is None or (reward is not None and reward <= search.max_reward))
        and record.id.startswith(search.prefix)
        and (not search.failed_calls or bool(record.failed_calls))
        and (search.failed_tool is None or failed(record, search.failed_tool))
        and (not search.lost or record.lost > 0)
        and (search.lost_reason is None or search.lost_reason in reasons(record))
        and set(filter.metadata) <= set(items(record.metadata))
        and (not filter.suspicious or (record.suspicious and bool(reward)))
        and (search.batch is None or record.group in ("g0", "g2"))
    )


def conditions(rng: random.Random) -> tuple[RolloutFilter, RolloutSearch]:
    def maybe(*values: Any) -> Any:
        return rng.choice(values) if rng.random() < 0.2 else None

    search = RolloutSearch(
        kind=maybe("math", "code"),
        mode=maybe("train", "eval"),
        reason=maybe("SandboxLost"),
        task=maybe("t1"),
        batch=maybe("b"),
        prefix=maybe("a-", "b-1", "%") or "",
        since=maybe(12.0, 15.0),
        until=maybe(14.0, 18.0),
        min_reward=maybe(0.0, 0.5),
        max_reward=maybe(0.5),
        failed_calls=maybe(True) or False,
        failed_tool=maybe("bash", 'a"b', "none"),
        lost=maybe(True) or False,
        lost_reason=maybe("SandboxLost", 'a"b', "one\ntwo, [3]", "none"),
        sort=maybe(*SortField),
        descending=rng.random() < 0.5,
    )
    more = {"pool": maybe("p"), "group": maybe("g0", "g1"), "suspicious": maybe(True) or False}
    more |= {"metadata": maybe(("level=2",), ("level=1", "source=x")) or (), "status": maybe((Status.COMPLETED,)) or ()}
    return RolloutFilter("default", limit=rng.choice([3, 500]), **more, search=search), search


@pytest.fixture
async def filled(tmp_path: Path) -> Any:
    """A store and its records. Two groups belong to a batch."""
    rng = random.Random(3)

    def put(tx: Transaction) -> list[RolloutRecord]:
        for id in ("g0", "g2"):
            tx.batches.put_group(
                GroupRecord("default", id, "s", 0, "p", 2, 0, 0, 1.0, 0, "b", GroupState.UNINFORMATIVE)
            )
        tx.put(replace(made(0, rng), namespace="elsewhere"))
        return [tx.put(made(number, rng)) for number in range(150)]

    store = await Store.open(tmp_path)
    yield store, await store.rollouts.transact(put)
    await store.close()


async def test_a_search_finds_what_matches_in_order(filled: tuple[Store, list[RolloutRecord]]) -> None:
    store, records = filled
    rng, found_some = random.Random(4), 0
    for _ in range(300):
        filter, search = conditions(rng)
        wanted = [record for record in records if matches(record, filter, search)]
        if search.sort is not None:
            name = ENDED_FIELD.get(search.sort, search.sort.value)
            wanted = [record for record in wanted if getattr(record, name) is not None]
            wanted.sort(key=lambda record: (getattr(record, name), record.seq), reverse=search.descending)
        found = await store.rollouts.list_rollouts(filter)
        assert [record.id for record in found] == [record.id for record in wanted[: filter.limit]], filter
        assert await store.rollouts.count(filter) == len(
            [record for record in records if matches(record, filter, search)]
        )
        matching, newest = await store.rollouts.work(filter)
        ended = [r for r in records if matches(r, filter, search) and r.status.terminal and r.mode != "check"]
        assert (matching, len(newest)) == (len(ended), min(len(ended), filter.limit))
        assert [json.loads(one.summary) for one in newest] == [r.summary for r in reversed(ended)][: filter.limit]
        found_some += bool(found)
    assert found_some > 100
    both = RolloutFilter("default", limit=4, search=RolloutSearch(kind="math"))
    first = await store.rollouts.list_rollouts(both)
    second = await store.rollouts.list_rollouts(replace(both, after_seq=first[-1].seq))
    assert [r.id for r in first + second] == [r.id for r in records if r.task_kind == "math"][:8]


FIELDS: dict[str, Callable[[RolloutRecord], Any]] = {
    "reason": lambda record: record.reason or record.status.value,
    "kind": lambda record: record.task_kind,
    "task": lambda record: record.task or None,
    "group": lambda record: record.group,
    "metadata.level": lambda record: str(record.metadata["level"]) if "level" in record.metadata else None,
}


async def test_a_summary_adds_up_each_value(filled: tuple[Store, list[RolloutRecord]]) -> None:
    store, records = filled
    filter = RolloutFilter("default", search=RolloutSearch(since=12.0))
    ended = [r for r in records if r.status.terminal and r.mode != "check" and (r.finished_at or 0) >= 12]
    for by, field in FIELDS.items():
        wanted: defaultdict[Any, list[RolloutRecord]] = defaultdict(list)
        for record in ended:
            wanted[field(record)].append(record)
        if by.startswith("metadata."):
            wanted.pop(None, None)
        rows = await store.rollouts.summarize(filter, by, 50)
        assert {row.value for row in rows} == set(wanted)
        for row in rows:
            of_value = wanted[row.value]
            rewards = [r.reward for r in of_value if r.reward is not None]
            by_group: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
            for record in of_value:
                if record.reward is not None:
                    task = record.task or (record.id if record.mode == "eval" else "")
                    by_group[record.group or record.id, task].append(record.reward)
            several = [found for found in by_group.values() if len(found) > 1]
            assert (row.rollouts, row.scored) == (len(of_value), len(rewards))
            assert row.mean_reward == (pytest.approx(sum(rewards) / len(rewards)) if rewards else None)
            assert row.best_reward == max(rewards, default=None)
            assert (row.groups, row.informative) == (len(several), sum(len(set(found)) > 1 for found in several))
            assert row.tokens == sum(record.tokens or 0 for record in of_value)
            assert row.newest == of_value[-1].id
    hardest = [row.mean_reward for row in await store.rollouts.summarize(filter, "task", 50)]
    assert hardest == sorted(hardest)  # type: ignore[type-var]
