"""Faults from outside of a sandbox: no rollout is scored by them. Each is tried again, and gets the reward of its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rollyard.kinds.rollout import RolloutRequest
from tests.e2e.one_yard.conftest import OnRuntime
from tests.e2e.test_hostile_agents import CALL
from tests.support.sandbox_processes import Found, agent, guard, launcher, node_agent, starter, whose_command_has
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(60)]

LOST, NOTHING = "SandboxLost", None
FAULTS: dict[str, tuple[str, Callable[[Found, int], int], signal.Signals, str | None]] = {
    "run-agent": ("run", agent, signal.SIGKILL, LOST),
    "run-agent-crashes": ("run", agent, signal.SIGSEGV, NOTHING),
    "run-agent-aborts": ("run", agent, signal.SIGABRT, NOTHING),
    "run-agent-bus-error": ("run", agent, signal.SIGBUS, NOTHING),
    "run-launcher": ("run", launcher, signal.SIGKILL, LOST),
    "run-launcher-stops": ("run", launcher, signal.SIGSTOP, NOTHING),
    "run-starter": ("run", starter, signal.SIGKILL, NOTHING),
    "run-guard": ("run", guard, signal.SIGKILL, NOTHING),
    "eval-agent": ("eval", agent, signal.SIGKILL, LOST),
    "eval-agent-crashes": ("eval", agent, signal.SIGSEGV, NOTHING),
    "eval-launcher": ("eval", launcher, signal.SIGKILL, LOST),
    "eval-starter": ("eval", starter, signal.SIGKILL, NOTHING),
    "eval-guard": ("eval", guard, signal.SIGKILL, NOTHING),
    "files-agent": ("files", agent, signal.SIGKILL, LOST),
    "files-agent-crashes": ("files", agent, signal.SIGSEGV, NOTHING),
    "files-launcher": ("files", launcher, signal.SIGKILL, LOST),
    "run-node-agent": ("run", node_agent, signal.SIGKILL, "LeaseLost"),
    "eval-node-agent": ("eval", node_agent, signal.SIGKILL, "LeaseLost"),
    "files-node-agent": ("files", node_agent, signal.SIGKILL, "LeaseLost"),
}
"""Fault -> the stage that it hits (`files`: an EVAL that begins with the agent's files), the process that gets the signal, and
what the history must say; None: no attempt ends."""
SHORT = {
    "own": ("run-agent", "run-starter", "eval-launcher", "files-agent", "files-agent-crashes"),
    "ordinary": ("eval-launcher",),
}


MARKS = {name: f"40.{number:03}{os.getpid():08}" for number, name in enumerate(FAULTS, 101)}
"""For each fault the most seconds that its process sleeps until it is found by them. Then it sleeps for `AFTER` more, because a
busy machine may find it late."""
AFTER = "5"


def _request(name: str, prefix: str) -> RolloutRequest:
    stage, seconds = FAULTS[name][0], MARKS[name]
    in_run = f"if mkdir /tmp/once; then sleep {seconds}; sleep {AFTER}; fi" if stage == "run" else "true"
    both = f"    import subprocess\n    for seconds in ('{seconds}', '{AFTER}'): subprocess.run(['sleep', seconds])\n"
    wait = both if stage != "run" else ""
    solution = f"def f(n):\n{wait}    return n * n\n"
    cases = [{"call": "f(3)", "expect": "9"}]
    more: dict[str, Any] = {"eval_from_snapshot": True} if stage == "files" else {}
    task = {
        "kind": "code",
        "problem": "Square.",
        "solution": "/workspace/s.py",
        "cases": cases,
        "case_seconds": 60,
        **more,
    }
    line = f"{CALL}cat > /workspace/s.py <<'EOF'\n{solution}EOF\n{in_run}"
    body = {
        "id": f"fault-{prefix}-{name}",
        "pool": "demo",
        "task": task,
        "agent": {"type": "command", "command": line},
    }
    return RolloutRequest.model_validate(body)


async def _hit(yard: Yard, name: str) -> None:
    """Send the signal once the process sleeps. It is sent once: the next attempt goes on."""
    _, find, number, _ = FAULTS[name]
    seconds = MARKS[name]

    async def look() -> tuple[Found, int] | None:
        return await asyncio.to_thread(whose_command_has, "sleep", seconds)

    found, pid = await yard.until(look)
    os.kill(find(found, pid), number)


async def _let_go_on(name: str) -> None:
    """End the first sleep of this rollout, also those of later attempts."""
    while True:
        if (seen := await asyncio.to_thread(whose_command_has, "sleep", MARKS[name])) is not None:
            with contextlib.suppress(ProcessLookupError):  # it is over
                os.kill(seen[1], signal.SIGTERM)
        await asyncio.sleep(0.5)


async def test_no_fault_from_outside_is_scored(on_runtime: OnRuntime, long_run: bool) -> None:
    yard, client, prefix = on_runtime.yard, on_runtime.client, f"{on_runtime.user}-{on_runtime.runtime}"
    names = [name for name in FAULTS if long_run or name in SHORT[on_runtime.user]]
    wrong = []
    for name in names:
        (id,) = await client.submit([_request(name, prefix)])
        await _hit(yard, name)
        going_on = asyncio.create_task(_let_go_on(name))
        try:
            (ended,) = await yard.gather(client, [id])
        finally:
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)
        entries = (await client.rollout_history(id)).entries
        faults = [
            one.reason if one.event == "Fault" else one.event for one in entries if one.event in ("Fault", "LeaseLost")
        ]
        wanted = FAULTS[name][3]
        print(name, ended.status, ended.reward, faults, dict(ended.metrics))
        if ended.reward != 1.0 or faults != ([wanted] if wanted else []) or "broken_sandbox" in ended.metrics:
            wrong.append((name, ended.status, ended.reward, faults, ended.error))
    assert wrong == []
