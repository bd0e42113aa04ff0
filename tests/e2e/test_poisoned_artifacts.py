"""Artifacts made to hurt whoever reads them, on one real node agent beside innocent rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from tests.support.yard import Yard, end, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(40)]

HARNESS = """python3 - <<'EOF'
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "1+1?"}], "temperature": 0}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
open("/workspace/s.py", "w").write(%r)
EOF
%s"""
WRITTEN = {
    "colliding integers": "('{' + ','.join(str(k * (2**61 - 1)) for k in range(600_000)) + '}').encode()",
    "a list of colliding texts": "('[\"{' + ','.join(str(k * (2**61 - 1)) for k in range(600_000)) + '}\"]').encode()",
    "lists of lists": "b'[' + b'[],' * 5_000_000 + b'[]]'",
    "lists of lists in a line": "b'[' + b'[],' * 80_000 + b'[]]\\n0\\n'",
    "depth": "b'[' * 250_000 + b'\\n0\\n'",
    "a long number": "b'9' * 250_000 + b'\\n0\\n'",
    "a set of lists": "b'{\"set\": [' + b'[[]],' * 50_000 + b'0]}\\n0\\n'",
}
LARGEST = 300 << 20


def poison(data: str) -> str:
    write = f"open('/tmp/check/results.json', 'wb').write({data})"
    return f"import os, signal\n{write}\nos.kill(os.getppid(), signal.SIGKILL)\n"


def hostile(id: str, solution: str, after: str = "", **more: Any) -> RolloutRequest:
    """A rollout whose agent writes this solution, then runs the command `after`."""
    cases = [{"call": f"f({n})", "expect": "{1, 2}"} for n in range(2)]
    task = {"kind": "code", "problem": "?", "solution": "/workspace/s.py", "cases": cases, **more}
    agent = {"type": "command", "command": HARNESS % (solution, after)}
    return RolloutRequest.model_validate({"id": id, "pool": "demo", "task": task, "agent": agent})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def wide(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient, int]]:
    """A yard with one node agent that evaluates all at once, and the node agent's pid."""
    yard = Yard(tmp_path_factory.mktemp("yard"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.yard.LEASE_SECONDS", 30.0)  # no busy machine lets a lease expire
        yard.start()
    try:
        async with yard.client() as client:
            nine = {"workers": {"min": 9, "max": 9}}
            await yard.apply(
                client, policy={"replicas": 1}, demo={"replicas": 1, "stages": {"run": nine, "eval": nine}}
            )
            await yard.ready(client)
            (pid,) = yard.processes("node-agent")
            yield yard, client, pid
    finally:
        await end(yard)


def memory(pid: int) -> int:
    """The most that the process held so far, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


async def test_poisoned_results_earn_nothing_and_the_node_agent_goes_on(wide: tuple[Yard, AsyncClient, int]) -> None:
    yard, client, pid = wide
    await yard.gather(client, await client.submit(requests(2, 2, prefix="before")))
    before = memory(pid)
    poisons = [hostile(f"poison-{i}", poison(data)) for i, data in enumerate(WRITTEN.values())]
    greedy = {"temperature": 0.0}
    ids = await client.submit([*poisons, *requests(4, 4, prefix="innocent", sampling=greedy)])
    ended = await yard.gather(client, ids, 300)
    assert yard.processes("node-agent") == [pid]
    grown = memory(pid) - before
    print(f"the node agent's peak grew by {grown >> 20} MiB")
    assert grown < LARGEST
    assert [t.attempt for t in ended] == [1] * len(ended), "no lease was lost"
    assert {t.status for t in ended} == {Status.COMPLETED}, [t.error for t in ended]
    assert [t.reward for t in ended[: len(poisons)]] == [0.0] * len(poisons)
    assert sum(t.reward or 0 for t in ended[len(poisons) :]) >= 7


async def test_a_cancelled_rollout_leaves_nothing_running(wide: tuple[Yard, AsyncClient, int]) -> None:
    yard, client, pid = wide
    spin = "import os\nfor _ in range(3):\n    os.fork()\nwhile True:\n    pass\n"
    late = hostile("late", spin, case_seconds=50.0)
    early = hostile("early", "", "exec sleep 1000")
    for request, stage in ((late, Stage.EVAL), (early, Stage.RUN)):
        (id,) = await client.submit([request])

        async def reached(id: str = id, stage: Stage = stage) -> bool:
            view, _ = await client.rollout(id)
            return view.stage is stage and bool(yard.sandboxes())

        await yard.until(reached)
        await client.cancel(id)

        async def gone() -> bool:
            return not yard.sandboxes()

        await yard.until(gone, 45)  # a case ends by itself after 50 s
    ended = await yard.gather(client, await client.submit(requests(2, 2, prefix="after")))
    assert all(t.status.scored for t in ended)
    assert yard.processes("node-agent") == [pid]
