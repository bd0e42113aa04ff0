"""Rollouts of the kind `swe`, from the request to the reward."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.support.swe_repository import swe_fields
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(40)]

SETUP = r"""
git init -q; mkdir -p calc tests; touch calc/__init__.py tests/__init__.py
printf 'def add(a, b):\n    return a - b\n' > calc/ops.py; echo 'KEPT = 1' > calc/keep.py
cat > tests/test_keep.py <<'END'
import unittest
from calc import keep

class Keep(unittest.TestCase):
    def test_keep(self):
        self.assertEqual(keep.KEPT, 1)
END
git add -A; git -c user.name=a -c user.email=a@example.org commit -qm base
"""
CALL = """python3 - <<'END'
import json, os, urllib.request
prompt = open(os.environ["ROLLYARD_PROMPT_FILE"]).read()
body = {"model": "policy", "max_tokens": 1, "messages": [{"role": "user", "content": prompt}]}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
END
"""


TASK = {"kind": "swe", **swe_fields(repository="/workspace", setup=SETUP)}
MEND = "sed -i 's/a - b/a + b/' calc/ops.py; rm -rf .git"


def asked(name: str, change: str) -> dict[str, Any]:
    return {"id": f"swe-{name}", "pool": "demo", "task": TASK, "agent": {"type": "command", "command": CALL + change}}


async def test_the_change_of_an_agent_gets_what_its_tests_say(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    requests = [
        asked("none", "true"), {"id": "swe-loop", "pool": "demo", "task": TASK, "agent": {"max_turns": 2}}
    ]  # fmt: skip
    ended = await yard.gather(client, await client.submit([RolloutRequest.model_validate(one) for one in requests]))
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    assert [t.reward for t in ended] == [0.0, 0.0]
    assert all(t.metrics["tests"] == 2.0 and t.notes for t in ended)


async def test_a_suspicious_reward_is_found_and_counted(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    headers = {"Authorization": f"Bearer {client.context.token}"}
    async with aiohttp.ClientSession(
        client.context.current_url(), connector=aiohttp.TCPConnector(ssl=client.context.tls()), headers=headers
    ) as http:

        async def counted() -> dict[str, float]:
            async with http.get("/metrics") as answer:
                text = await answer.text()
            labels = r'\{marks="(\w+)",namespace="default",pool="demo"\}'
            return {marks: float(n) for marks, n in re.findall(rf"^rollyard_rewards_total{labels} (\S+)$", text, re.M)}

        before = await counted()
        solve = {"id": "swe-check", "pool": "demo", "task": TASK, "mode": "check", "agent": {"type": "solve"}}
        requests = [asked("honest", MEND), asked("marked", f"{MEND}; echo broken > tests/test_keep.py"), solve]
        ended = await yard.gather(client, await client.submit([RolloutRequest.model_validate(one) for one in requests]))
        assert [(t.reward, t.metrics["suspicious"]) for t in ended] == [(1.0, 0.0), (1.0, 1.0), (1.0, 0.0)], ended
        after = await counted()
        counts = {marks: after[marks] - before.get(marks, 0.0) for marks in after}
        assert counts == {"none": 1.0, "suspicious": 1.0}, "a check of a task is no reward of a policy"
        async with http.get("/v1/rollouts", params={"suspicious": "true", "pool": "demo"}) as answer:
            listed = [one["id"] for one in (await answer.json())["rollouts"]]
    assert listed == [view.id async for view in client.rollouts(suspicious=True)] == ["swe-marked"]
    out, _ = await yard.rollyard("rollouts", "list", "--suspicious")
    assert "swe-marked" in out
    assert "swe-honest" not in out
