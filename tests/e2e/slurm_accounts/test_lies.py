"""Accounting speaks for a job that squeue omits; a wrong answer of accounting changes nothing."""

from __future__ import annotations

import pytest

from tests.e2e.slurm_faults.test_lies import LIES, lie, nothing_has_changed
from tests.support.slurm_field import Field

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(121)]


@pytest.mark.long  # slurm_faults/test_lies.py has it without accounting
async def test_accounting_speaks_for_a_job_too_and_is_not_needed(field: Field) -> None:
    before = {j.id for j in await field.yard.jobs(live=False)}
    await lie(field, "header", LIES, "; heartbeats and accounting say they run")
    await field.condition("SlurmReachable", "True")
    field.shims.order("sacct", "garbage", 10)
    await lie(field, "header", LIES, "; heartbeats say they run")
    await nothing_has_changed(field, before)
    field.shims.order("sacct", "garbage", 0)
