"""Rollouts of the kind `swe`, from the request to the reward."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.client import AsyncClient
from rollyard.client.task_report import TaskReport
from rollyard.client.task_verdict import TaskVerdict
from rollyard.kinds.rollout import RolloutRequest, Status
from tests.support.swe_instances.instance import Pair, instance
from tests.support.swe_instances.pairs import MEASURED, SHORT
from tests.support.swe_repository import swe_fields
from tests.support.yard import Yard
from tests.tasks.swe.test_instances import imported

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


NO_CHANGE = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n@@ -0,0 +1 @@\n+no change\n"


@pytest.mark.parametrize(
    "pair", [SHORT, *(pytest.param(one, marks=pytest.mark.long) for one in MEASURED[1:])], ids=lambda pair: pair.id
)
async def test_a_check_of_a_real_instance_tells_a_wrong_reference_and_a_free_reward(
    served: tuple[Yard, AsyncClient], tmp_path: Path, pair: Pair
) -> None:
    yard, _ = served
    one = await asyncio.to_thread(instance, pair)
    (sound,) = imported([one], tmp_path)
    fields = sound.model_dump(mode="json")
    lists = {"fail_to_pass": [], "pass_to_pass": one.made.kept}
    tasks = [fields, {**fields, "reference_patch": NO_CHANGE}, {**fields, **lists}]
    (file := tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    report = tmp_path / "report.jsonl"
    words = ("tasks", "check", str(file), "--pool", "demo", "--runs", "1", "--name", pair.id, "-o", str(report))
    out, _ = await yard.rollyard(*words, code=1, seconds=900)
    checked = TaskReport.read(report).tasks
    assert [task.verdict for task in checked] == [TaskVerdict.SOUND, TaskVerdict.BROKEN, TaskVerdict.FREE], out
    assert ("3 without control tests" in out) == (pair.language != "python")
    assert "the reference solution gets 0" in checked[1].why[0]
    assert (
        checked[2].why[0].startswith("nothing at all gets 1; the tests pass, and the agent changed nothing that counts")
    )
