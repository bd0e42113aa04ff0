"""Runs that begin before they are known to be needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from rollyard.tasks.swe.early_run import EarlyRun, core_is_idle
from rollyard.tasks.swe.eval_time import EvalTime
from tests.support.until import until


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


async def test_a_machine_with_a_program_for_each_core_has_none_idle() -> None:
    with busy(len(os.sched_getaffinity(0)) + 1):
        await until(lambda: not core_is_idle())


async def test_the_end_of_the_block_ends_the_run_and_drops_its_fault() -> None:
    ended = asyncio.Event()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise OSError("nobody needs it")

    async with EarlyRun[None]() as early:
        early.begin(run())
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_the_fault_of_a_run_that_is_needed_is_raised() -> None:
    async def run() -> None:
        raise OSError("no sandbox")

    async with EarlyRun[None]() as early:
        early.begin(run())
        with pytest.raises(OSError, match="no sandbox"):
            await early.result()


def test_the_tests_can_use_up_no_time_of_control_tests_that_run_beside_them() -> None:
    clock = EvalTime(350.0, 1000.0)
    tests, beside = clock.tests(1), clock.beside_tests()
    assert beside.ends - tests.ends >= 1.25 * 99.9
    assert beside.most == 1000.0 + 1250.0
