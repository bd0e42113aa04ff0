"""A harness of its own as the agent of whole rollouts: scored, one segment each, and the model's own logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from e2e_yard import MODEL, Yard, requests

from rollyard.client.client import AsyncClient
from rollyard.kinds.rollout import Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

HARNESS = """cat > /tmp/harness.py <<'EOF'
import json, os, subprocess, urllib.request
tool = {"type": "function", "function": {"name": "ipython", "description": "Run Python code in a session that keeps its state.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}
def read(name):
    return open(os.environ[name]).read()
def call(messages):
    body = json.dumps({"model": "any", "messages": messages, "tools": [tool], "temperature": 0}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
messages = [{"role": "system", "content": read("ROLLYARD_SYSTEM_PROMPT_FILE")},
            {"role": "user", "content": read("ROLLYARD_PROMPT_FILE")}]
for _ in range(6):
    message = call(messages)
    if not message["content"]:
        del message["content"]
    messages.append({**message, "provider_specific_fields": {}})
    if not message.get("tool_calls"):
        break
    for one in message["tool_calls"]:
        code = json.loads(one["function"]["arguments"]).get("code", "")
        done = subprocess.run(["python3", "-c", "print(" + code + ")"], capture_output=True, text=True, timeout=20)
        messages.append({"role": "tool", "tool_call_id": one["id"], "content": done.stdout.strip()})
EOF
python3 /tmp/harness.py"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    yard.start()
    async with yard.client() as client:
        await yard.apply(client)
        await yard.ready(client)
        yield yard, client
    await yard.clean_up()


async def test_a_black_box_agent_gives_trainable_trajectories(served: tuple[Yard, AsyncClient]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    yard, client = served
    agent: dict[str, Any] = {"type": "command", "command": HARNESS, "max_turns": 8}
    ended = await yard.gather(client, await client.submit(requests(6, 0, prefix="harness", agent=agent)))
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    assert sum(t.reward or 0 for t in ended) > 0
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for t in ended:
        assert t.metrics["harness_exit_code"] in (0, 1)
        (segment,) = t.segments
        assert t.breaks == {}
        assert len(t.turns) > 1
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in t.turns)
        with torch.no_grad():
            table = torch.log_softmax(model(torch.tensor([segment.token_ids])).logits[0].float(), -1)
        for i, logprob in enumerate(segment.logprobs):
            if logprob is not None:
                assert abs(table[i - 1, segment.token_ids[i]].item() - logprob) < 0.02


async def test_a_command_that_is_none_fails_and_says_so(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agent = {"type": "command", "command": "no-such-harness"}
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="none", agent=agent)))
    assert (ended.status, ended.reward) == (Status.FAILED, None)
    assert ended.error is not None
    assert "exit code 127" in ended.error.message


async def test_a_budget_truncates_a_harness_and_what_it_did_is_scored(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agent = {"type": "command", "command": f"{HARNESS}\nsleep 600"}
    budgets = {"run_seconds": 6}
    (ended,) = await yard.gather(
        client, await client.submit(requests(1, 0, prefix="slow", agent=agent, budgets=budgets))
    )
    assert ended.status is Status.TRUNCATED
    assert ended.reward is not None
    assert len(ended.segments) == 1
