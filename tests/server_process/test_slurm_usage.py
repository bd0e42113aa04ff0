"""Comparisons with Slurm's accounting: absent, silent, slow. Scripts stand in for sacct."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.core.clock import SystemClock
from rollyard.core.errors import Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.usage import SlurmUsageView
from rollyard.server_process import slurm_usage
from rollyard.server_process.slurm_usage import SlurmUsage
from rollyard.slurm.call_budget import BudgetedDriver
from rollyard.slurm.cli_driver import COUNTED, MARK, CliDriver
from rollyard.slurm.local_driver import LocalDriver
from rollyard.store.store import Store
from tests.store.record import ENDED

HEAD = MARK.join([*COUNTED, ""])
ROW = MARK.join(["7", "rollyard-policy-0", "2023-11-14T22:13:20", "2023-11-14T22:13:21", "2023-11-14T22:13:29", "4",
                 "cpu=4,gres/gpu=1", ""])  # fmt: skip


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "data", SystemClock())
    await opened.ended_allocations.add(ENDED)
    yield opened
    await opened.close()


def asking(store: Store, folder: Path, text: str, limit_seconds: float = 30.0) -> SlurmUsage:
    """One for which sacct is a shell script of this text."""
    (folder / "sacct").write_text(f"#!/bin/bash\necho asked >> {folder}/calls\n{text}\n")
    (folder / "sacct").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return SlurmUsage(store, BudgetedDriver(CliDriver(env, limit_seconds=limit_seconds)), SystemClock())


async def test_callers_at_one_moment_get_one_answer(store: Store, tmp_path: Path) -> None:
    usage = asking(store, tmp_path, f"echo '{HEAD}'; echo '{ROW}'")
    found, same = await asyncio.gather(*(usage.compare(None, 0.0, 10) for _ in range(2)))
    assert found == same
    assert (found.missing, found.total.differing) == (None, 0)
    assert found.total.slurm_gpu_hours == found.total.gpu_hours == pytest.approx(8 / 3600)
    assert (tmp_path / "calls").read_text() == "asked\n"
    assert (await usage.compare("elsewhere", 0.0, 10)).rows == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", "Slurm keeps no accounts here"),
        ("echo 'sacct: error: Connection refused' >&2; exit 1", "cannot be read: Connection refused"),
        ("exec sleep 100", "cannot be read: sacct did not answer within 0.2 s"),
        ("echo '<html>502</html>'", "cannot be read: "),
    ],
)
async def test_what_is_not_known_is_told(store: Store, tmp_path: Path, text: str, told: str) -> None:
    found = await asking(store, tmp_path, text, 0.2).compare(None, 0.0, 10)
    assert told in (found.missing or "")
    assert (found.total.slurm_gpu_hours, found.total.jobs) == (None, 1)


async def test_many_slow_questions_end_and_hold_nobody_for_long(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_usage, "ANSWER_SECONDS", 0.3)
    for number in range(1001):
        await store.ended_allocations.add(evolve(ENDED, uid=str(number), job_id=str(number)))
    usage = asking(store, tmp_path, "exec sleep 100")
    asked = (usage.compare(None, 0.0, limit) for limit in range(1, 7))
    first, *others = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, SlurmUsageView)
    assert "did not tell of 1001 jobs" in (first.missing or "")
    assert any(isinstance(one, Unavailable) for one in others)


async def test_there_is_no_slurm_on_one_machine(store: Store, tmp_path: Path) -> None:
    found = await SlurmUsage(store, LocalDriver(tmp_path / "jobs"), SystemClock()).compare(None, 0.0, 10)
    assert "there is no Slurm here" in (found.missing or "")
