"""The preview of a pool's change: the reconciler's own plan, in one line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.core.clock import as_text
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.registry import Pool
from rollyard.reconcilers.plan import template_hash
from rollyard.reconcilers.preview import summarise
from tests.support import make

NOW = 1_700_000_000.0
AUTOSCALING = {"minReplicas": 1, "maxReplicas": 4}


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def pool(status: Any = None, **spec: Any) -> Pool:
    return make.rollout_pool(status=status, **{"inference": {"policy": "p"}, "allocation": {"gpusPerNode": 1}, **spec})


def allocation(index: int, of: Pool, **more: Any) -> Allocation:
    spec = {name: more.pop(name) for name in ("template_hash", "drain", "successor_of") if name in more}
    made = {"template_hash": template_hash(of), "template": of.spec.allocation}
    status = {
        "intents": 1,
        "job_state": "RUNNING",
        "node": "n1",
        "ready": True,
        "ready_at": at(-99),
        "start_time": at(-99),
    }
    return make.allocation(f"swe-{index}", created=at(-100), spec=made | spec, **status | more)


OLD = {"template_hash": "old"}
FAILED = {"job_state": "FAILED", "ready": False, "ready_at": None, "end_time": at(0)}
SPENT = "the 1 GPU-hours of spec.maxGpuHours are used up"


@pytest.mark.parametrize(
    ("of", "there", "jobs", "expected"),
    [
        (pool(replicas=1), [], 1, "would submit 1 job SHAPE"),
        (pool(replicas=3), [{}], 2, "would submit 2 jobs SHAPE, as one job array"),
        (pool(replicas=1), [{}], 0, "would submit nothing now"),
        (pool(replicas=1), [{}, {}, {}], 0, "would give back 2 allocations"),
        (pool(replicas=2, suspend=True), [{}], 0, "would give back 1 allocation"),
        (pool(replicas=2, suspend=True), [], 0, "would submit nothing now"),
        (pool(replicas=1), [OLD], 1, "would replace 1 job by as many SHAPE"),
        (pool(replicas=3), [OLD] * 3, 3, "would replace 3 jobs by as many SHAPE, at most 1 at once"),
        (pool(replicas=1), [OLD, {}], 0, "would give back 1 allocation"),
        (pool(replicas=1), [OLD, {"successor_of": "swe-0"}], 0, "would submit nothing now"),
        (pool(replicas=2), [OLD], 2, "would submit 1 job SHAPE; replace 1 job by as many SHAPE"),
        (pool(autoscaling=AUTOSCALING), [], 1, "would submit 1 job SHAPE"),
        (
            pool(autoscaling=AUTOSCALING),
            [{}],
            0,
            "would submit nothing now; up to 4 jobs SHAPE as the demand grows",
        ),
        (
            pool({"replicas": {"desired": 3}}, autoscaling=AUTOSCALING),
            [{}],
            2,
            "would submit 2 jobs SHAPE, as one job array",
        ),
        (pool(replicas=1), [FAILED], 1, f"would submit 1 job SHAPE, not before {as_text(NOW + 1)}"),
        (
            pool({"gpuLedger": {"past": 3600}}, replicas=2, maxGpuHours=1),
            [{}],
            0,
            f"would give back 1 allocation; {SPENT}",
        ),
        (
            pool({"gpuLedger": {"past": 3600}}, replicas=2, maxGpuHours=1),
            [],
            0,
            f"would submit nothing now; {SPENT}",
        ),
        (pool(replicas=1), [{"drain": True}, {"drain": True}], 0, "would submit nothing now"),
    ],
)
def test_the_summary_of_a_plan(of: Pool, there: list[dict[str, Any]], jobs: int, expected: str) -> None:
    allocations = [allocation(index, of, **change) for index, change in enumerate(there)]
    found, text = summarise(of, allocations, "SHAPE", NOW)
    assert (found, text.partition("; the pool gives back")[0]) == (jobs, expected)
