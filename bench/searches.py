"""Time of searches among stored rollouts: each condition of the page and of `rollyard rollouts`, pairs of them, and each order.

The store is that of `bench.page_site`. The queries are the store's own, on one read connection with its settings. The baseline
reads the whole table, without any of the indexes: what a store without them would do.

    python -m bench.searches [--rollouts 100000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.page_site import BATCH, store_rollouts
from rollyard.kinds.rollout import Status
from rollyard.store.base import RolloutFilter, RolloutSearch, SortField
from rollyard.store.rollout_queries import RolloutQueries

LIMIT_MS = 300
REPEATS = 2
PAGE = 100
NOW = time.time()
CONDITIONS: dict[str, dict[str, object]] = {
    "pool": {"pool": "p3"},
    "group": {"group": "g5000"},
    "status": {"status": (Status.COMPLETED,)},
    "faults": {"status": (Status.FAILED, Status.INFRA_FAILED)},
    "kind": {"kind": "swe"},
    "mode": {"mode": "check"},
    "reason": {"reason": "SandboxLost"},
    "unknown reason": {"reason": "NoSuchReason"},
    "task": {"task": f"{77:016x}"},
    "batch": {"batch": BATCH},
    "prefix": {"prefix": "g70"},
    "rare prefix": {"prefix": "none"},
    "common metadata": {"metadata": ("split=train",)},
    "metadata": {"metadata": ("difficulty=hard", "split=test")},
    "unknown metadata": {"metadata": ("difficulty=none",)},
    "min_reward": {"min_reward": 0.9},
    "max_reward": {"max_reward": 0.0001},
    "ended within a day": {"since": NOW - 86_400},
    "suspicious": {"suspicious": True},
}
SUMMED = ("reason", "kind", "task", "metadata.difficulty")
SUMMED_OF = ("faults", "batch")
COUNTED = ("pool", "kind", "common metadata", "prefix")


def filter_of(*given: dict[str, object], sort: SortField | None, descending: bool = True) -> RolloutFilter:
    fields = {name: value for one in given for name, value in one.items()}
    own = {name: fields.pop(name) for name in list(fields) if name in RolloutSearch.__dataclass_fields__}
    search = RolloutSearch(**own, sort=sort, descending=descending)  # type: ignore[arg-type]
    return RolloutFilter(namespace="default", limit=PAGE, search=search, **fields)  # type: ignore[arg-type]


class Spent(NamedTuple):
    """Time of a search in ms."""

    cpu: float
    wall: float


def timed(call: Callable[[], object]) -> Spent:
    """Return the time of the call that waited the least for a core."""
    found = []
    for _ in range(REPEATS):
        began, cpu = time.perf_counter(), time.thread_time()
        call()
        found.append(Spent((time.thread_time() - cpu) * 1000, (time.perf_counter() - began) * 1000))
    return min(found, key=lambda one: one.wall)


def measure(data: Path) -> None:
    db = sqlite3.connect(data / "rollyard.db", isolation_level=None, cached_statements=256)
    for setting in ("temp_store=MEMORY", "cache_size=-32768", "query_only=ON"):  # those of the store's read connections
        db.execute(f"PRAGMA {setting}")
    queries = RolloutQueries(db)
    times: dict[str, Spent] = {}
    orders: list[tuple[SortField | None, bool]] = [(None, False), (SortField.ENDED, True)]
    orders += [(field, way) for field in SortField for way in (False, True) if (field, way) != (SortField.ENDED, True)]
    for sort, descending in orders:
        given = filter_of(sort=sort, descending=descending)
        times[f"no condition, {_word(sort, descending)}"] = timed(partial(queries.list_rollouts, given))
    for (a, one), (b, other) in itertools.combinations_with_replacement(CONDITIONS.items(), 2):
        given = filter_of(one, other, sort=SortField.ENDED)
        times[a if a == b else f"{a}, {b}"] = timed(partial(queries.list_rollouts, given))
    for by, of in itertools.product(SUMMED, (None, *SUMMED_OF)):
        given = filter_of(CONDITIONS[of] if of else {}, sort=None)
        times[f"sums by {by}: {of or 'no condition'}"] = timed(partial(queries.summarize, given, by, 2000))
    for name in COUNTED:
        given = filter_of(CONDITIONS[name], sort=None)
        times[f"number of rollouts by {name}"] = timed(partial(queries.count, given))
    times["counts"] = timed(lambda: queries.counts("default"))
    plain = replace(filter_of(CONDITIONS["status"], sort=None), search=None)
    times["plain list"] = timed(lambda: queries.list_rollouts(plain))
    base = timed(lambda: _whole_table(db))
    slowest = sorted(times.items(), key=lambda one: -one[1].cpu)
    print(f"{len(times)} searches, ms: the limit is {LIMIT_MS}; reading the whole table takes {base.cpu:.0f} (CPU)")
    for kind in ("cpu", "wall"):
        all_ms = sorted(getattr(one, kind) for one in times.values())
        over = sum(ms > LIMIT_MS for ms in all_ms)
        print(f"{kind:4}: median {statistics.median(all_ms):.0f}, greatest {all_ms[-1]:.0f}, "
              f"of the limit {all_ms[-1] / LIMIT_MS:.2f}, {over} over it")  # fmt: skip
    for name, ms in slowest[:15]:
        print(f"{ms.cpu:8.0f} {ms.wall:6.0f}  {name}")
    print(f"load average of the last minute: {os.getloadavg()[0]:.0f}, with this process")


def _word(sort: SortField | None, descending: bool) -> str:
    return "by arrival" if sort is None else f"by {'-' if descending else ''}{sort.value}"


def _whole_table(db: sqlite3.Connection) -> list[object]:
    query = "SELECT * FROM rollouts NOT INDEXED WHERE task_kind = 'swe' ORDER BY finished_at DESC LIMIT ?"
    return db.execute(query, (PAGE,)).fetchall()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--data", type=Path, help="a folder of an earlier run, which no server uses")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as folder:
        data = given.data or Path(folder, "data")
        if not data.exists():
            asyncio.run(store_rollouts(data, given.rollouts, 0))
        measure(data)


if __name__ == "__main__":
    main()
