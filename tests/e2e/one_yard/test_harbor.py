"""Rollouts of the kind `harbor`, from the request to the reward."""

from __future__ import annotations

import pytest

from rollyard.client import AsyncClient
from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.e2e.one_yard.test_swe import CALL
from tests.support.harbor_folders import FORGED, GRADE, TEST, WRITE, two_steps
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(40)]

TASK = {
    "kind": "harbor", "config": {"agent": {"timeout_sec": 100}, "environment": {"workdir": "/work"}},
    "files": {"instruction.md": "Write hello world.", "tests/test.sh": GRADE, "solution/solve.sh": f"{TEST}{WRITE}"},
}  # fmt: skip


async def test_the_verifier_scores_what_the_agent_left(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agents = {
        "right": {"type": "command", "command": CALL + WRITE},
        "forged": {"type": "command", "command": f"{CALL}({FORGED}; while :; do {FORGED}; done) &"},
        "loop": {"max_turns": 2},
    }
    asked = [{"id": f"harbor-{name}", "pool": "demo", "task": TASK, "agent": agent} for name, agent in agents.items()]
    steps = {**TASK, "files": {**two_steps().files}, "verifier": "shared"}
    steps["config"] = {"environment": {"workdir": "/work"}, "steps": [{"name": "one"}, {"name": "two"}]}
    for name, task in {"solve": TASK, "steps-solve": steps}.items():
        asked.append(
            {"id": f"harbor-{name}", "pool": "demo", "task": task, "mode": "check", "agent": {"type": "solve"}}
        )
    asked.append({"id": "harbor-steps", "pool": "demo", "task": steps, "agent": {"max_turns": 3}})
    ended = await yard.gather(client, await client.submit([RolloutRequest.model_validate(one) for one in asked]))
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    rewards = {t.id: t.reward for t in ended}
    assert rewards == {
        "harbor-right": 1.0, "harbor-forged": 0.0, "harbor-loop": 0.0, "harbor-solve": 1.0, "harbor-steps-solve": 1.0,
        "harbor-steps": 0.25,
    }  # fmt: skip


async def test_a_task_that_needs_more_than_the_pool_has_is_refused(served: tuple[Yard, AsyncClient]) -> None:
    _, client = served
    needs = {"memory_mb": 1 << 20, "network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}
    task = {**TASK, "config": {"environment": needs}}
    with pytest.raises(Invalid, match=r"1048576 MiB of memory.*pypi\.org"):
        await client.submit([RolloutRequest.model_validate({"pool": "demo", "task": task})])
