"""One of the programs as the agent of a rollout, in a sandbox without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.support import mini_swe_agent
from tests.support.client_sessions import check
from tests.support.model_clients import CLIENTS, PROGRAMS, VARIABLES
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]


async def test_mini_swe_agent_solves_a_task_in_its_sandbox(served: tuple[Yard, AsyncClient], policy: Path) -> None:
    yard, client = served
    (program,) = [c for c in CLIENTS if c.program == "mini_swe"]
    source = (PROGRAMS / "mini_swe.py").read_text()
    request = RolloutRequest.model_validate({
        "id": "mini", "pool": "demo", "sampling": {"temperature": 0.5, "max_tokens": 200},
        "task": {"kind": "code", "image": str(mini_swe_agent.image()), "problem": "Compute.",
                 "solution": "/workspace/answer", "cases": [{"call": "1", "expect": "1"}],
                 "files": {"/workspace/program.py": source}},
        "agent": {"type": "command", "command": "python3 program.py",
                  "env": {**VARIABLES, "PYTHONPATH": f"/{mini_swe_agent.PACKAGES}"}},
    })  # fmt: skip
    (ended,) = await yard.gather(client, await client.submit([request]))
    assert ended.status is Status.COMPLETED, ended.error
    assert ended.metrics["harness_exit_code"] == 0
    check(program, ended, policy)
