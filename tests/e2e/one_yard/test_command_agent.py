"""A harness of its own as the agent of whole rollouts: scored, one segment each, and the model's own logprobs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from rollyard.cli.rollouts import transcript
from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.rollout import RolloutView, Status
from rollyard.kinds.task import Task
from tests.support.recompute import differences
from tests.support.standstill import freeze
from tests.support.yard import MODEL, Yard, kill, requests

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(40)]

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


async def test_a_black_box_agent_gives_trainable_trajectories(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agent: dict[str, Any] = {"type": "command", "command": HARNESS, "max_turns": 8}
    ended = await yard.gather(client, await client.submit(requests(6, 0, prefix="harness", agent=agent)))
    assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}, [t.error for t in ended]
    assert sum(t.reward or 0 for t in ended) > 0
    assert max(differences(ended, MODEL)) < 0.02
    for t in ended:
        assert t.metrics["harness_exit_code"] in (0, 1)
        (segment,) = t.segments
        assert t.breaks == {}
        assert len(t.turns) > 1
        assert sum(segment.loss_mask) == sum(turn.response_length for turn in t.turns)


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
    for seconds in (6, 30, 120):  # on a busy machine the first turn may outlast the budget; then nothing is scored
        more = {"agent": agent, "budgets": {"run_seconds": seconds}}
        (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix=f"slow-{seconds}", **more)))
        if ended.status is Status.TRUNCATED:
            break
    assert ended.status is Status.TRUNCATED, ended.error
    assert ended.cut_short == f"RUN's budget of {seconds} s ended"
    assert f"    {ended.cut_short}" in transcript(ended)
    assert ended.reward is not None
    assert len(ended.segments) == 1


STREAMING = """cat > /tmp/harness.py <<'EOF'
import json, os, subprocess, threading, time, urllib.request
def show(name):
    subprocess.Popen(["bash", "-c", f"exec -a {name}-$MARK sleep 600"])
class Watch(threading.Thread):
    def __init__(self, number):
        super().__init__(daemon=True)
        self.number, self.heard, self.chunks = number, time.monotonic(), 0
    def run(self):
        while self.chunks < 8:
            time.sleep(0.005)
        show(f"streaming-{self.number}")
        while time.monotonic() - self.heard < 1:
            time.sleep(0.05)
        show(f"stalled-{self.number}")
def call(number, messages):
    body = json.dumps({"model": "any", "messages": messages, "stream": True}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    said, watch = "", Watch(number)
    watch.start()
    for line in urllib.request.urlopen(request):
        watch.heard = time.monotonic()
        if line.startswith(b"data: {"):
            watch.chunks += 1
            said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    watch.heard = float("inf")
    return said
messages = [{"role": "user", "content": "What is 3 * 4?"}]
for number in range(2):
    messages += [{"role": "assistant", "content": call(number, messages)}, {"role": "user", "content": "And 4 * 5?"}]
EOF
python3 /tmp/harness.py"""


async def test_a_harness_streams_on_when_its_engine_is_killed_in_the_middle_of_a_call(
    served: tuple[Yard, AsyncClient],
) -> None:
    """It sees one stream, from one engine and then the other; its trajectory is one segment of the model's own logprobs."""
    yard, client = served
    await client.scale(ObjectKey(kind="InferencePool", namespace="default", name="policy"), 2)
    await yard.ready(client)
    for attempt in range(5):
        id, running, engine = await met_in_the_second_call(yard, client, attempt)
        if engine is None:
            continue
        kill(engine)
        (ended,) = await yard.gather(client, [id])
        assert (ended.status, ended.metrics["harness_exit_code"]) == (Status.COMPLETED, 0), ended.error
        assert ended.attempt == running.attempt, "it went on, and did not begin anew"
        if ended.endpoint != running.endpoints["policy"]:
            break  # else the engine had said everything before it was frozen, and a busy machine showed it late
    else:
        pytest.fail("no call was under way when its engine was killed")
    assert len(ended.turns) == 2
    (segment,) = ended.segments
    assert ended.breaks == {}
    assert sum(segment.loss_mask) == sum(turn.response_length for turn in ended.turns)
    assert max(differences([ended], MODEL)) < 0.02


async def met_in_the_second_call(yard: Yard, client: AsyncClient, attempt: int) -> tuple[str, RolloutView, int | None]:
    """Return a rollout and the process of its engine, frozen in the middle of the call; None if the call was over before."""
    mark = secrets.token_hex(4)
    agent = {"type": "command", "command": STREAMING, "env": {"MARK": mark}}
    sampling = {"max_tokens": 1000, "temperature": 3, "seed": 1 + attempt}  # so hot that most turns are long
    (id,) = await client.submit(requests(1, 0, prefix=f"killed-{attempt}", agent=agent, sampling=sampling))

    async def ended() -> bool:
        return (await client.rollout(id))[0].status.terminal

    async def streaming_or_ended() -> bool:
        return await shown(f"streaming-1-{mark}") or await ended()

    await yard.until(streaming_or_ended)
    running, _ = await client.rollout(id)
    if running.status.terminal:
        return id, running, None
    (engine,) = yard.engines(running.endpoints["policy"])
    freeze(engine)

    async def stalled_or_ended() -> bool:
        return await shown(f"stalled-1-{mark}") or await ended()

    await yard.until(stalled_or_ended)
    if await ended():
        os.kill(engine, signal.SIGCONT)
        return id, running, None
    return id, running, engine


async def shown(name: str) -> bool:
    """Whether there is a process of this name, in a sandbox or out of it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(entry.read_bytes().startswith(name.encode()))
    return any(found)


TOO_LONG = """python3 - <<'EOF'
import json, os, urllib.error, urllib.request
def call(text):
    body = json.dumps({"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]["code"]
print("codes:", call("word " * 800_000), call("word " * 200_000), call("hello"))
EOF"""


async def test_a_prompt_of_4_mb_costs_the_node_agent_nothing_and_the_session_goes_on(
    served: tuple[Yard, AsyncClient],
) -> None:
    """The embedded engine reports a context of 4,096 tokens, and no budget names one."""
    yard, client = served
    (agent,) = yard.processes("node-agent")
    before = _peak_megabytes(agent)
    command = {"type": "command", "command": TOO_LONG}
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="long", agent=command)))
    assert "codes: context_length_exceeded context_length_exceeded 200" in (ended.harness_output or ""), ended
    assert ended.status is Status.TRUNCATED
    task = Task.model_validate({"kind": "math", "problem": "word " * 180_000, "answer": "1"})
    (request,) = requests(1, 0, prefix="loop")
    (failed,) = await yard.gather(client, await client.submit([evolve(request, task=task)]))
    assert failed.error is not None
    assert "tokens and leaves no room for an answer: the conversation has at least " in failed.error.message
    assert _peak_megabytes(agent) < before + 150, "megabytes; to tokenise the first text takes 1,000"


def _peak_megabytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10  # type: ignore[index]
