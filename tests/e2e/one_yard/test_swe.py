"""Rollouts of the kind `swe`, from the request to the reward."""

from __future__ import annotations

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


async def test_the_change_of_an_agent_gets_what_its_tests_say(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    task = {"kind": "swe", **swe_fields(repository="/workspace", setup=SETUP)}
    changes = {"right": "sed -i 's/a - b/a + b/' calc/ops.py; rm -rf .git", "none": "true"}
    asked = [
        {"id": f"swe-{name}", "pool": "demo", "task": task, "agent": {"type": "command", "command": CALL + change}}
        for name, change in changes.items()
    ]
    asked.append({"id": "swe-loop", "pool": "demo", "task": task, "agent": {"max_turns": 2}})
    ended = await yard.gather(client, await client.submit([RolloutRequest.model_validate(one) for one in asked]))
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    assert sorted(t.reward or 0.0 for t in ended) == [0.0, 0.0, 1.0]
    assert all(t.metrics["tests"] == 2.0 and t.notes for t in ended)
