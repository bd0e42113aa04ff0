"""Snapshots from which another node agent goes on: behind their turns, within limits, and never at another's cost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollyard.core.errors import Fenced, Invalid, ResumeFailed
from rollyard.kinds.rollout import AgentSpec, Sampling, Stage, Status
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.node import resume_snapshots
from rollyard.node.agent_loop import run_agent
from rollyard.node.lease_run import LeaseRun
from rollyard.node.resume_snapshots import ResumeSnapshots
from rollyard.node.saved_work import SavedWork
from rollyard.node.tool_execution import Tools
from rollyard.node.turn_saver import TurnSaver
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trajectory import Outcome, RunResult, SavedTurn
from rollyard.wire.node import LeaseRef, SnapshotHeader, StoredTurns, TurnsHeader
from tests.node.test_fork import CALLS, Told, begun
from tests.node.test_lease_run import LEASE, Full, work

REF = LeaseRef(namespace="default", id="r", fence=1, stage=Stage.RUN)


class Server:
    """Keeps the order in which uploads arrive. It takes turns once `open` is set."""

    def __init__(self, *, refuses_turns: Exception | None = None, refuses_snapshots: Exception | None = None) -> None:
        self.arrived: list[str] = []
        self.told: list[str] = []
        self.open = asyncio.Event()
        self._refuses_turns, self._refuses_snapshots = refuses_turns, refuses_snapshots

    async def turns(self, header: TurnsHeader, bodies: list[bytes]) -> None:
        await self.open.wait()
        if self._refuses_turns is not None:
            raise self._refuses_turns
        self.arrived += [f"turns {header.kept}+{len(bodies)}"] if bodies else []
        self.told += [header.stopped] if header.stopped else []

    async def sandbox_snapshot(self, header: SnapshotHeader, archive: SandboxSnapshot | None) -> None:
        if self._refuses_snapshots is not None:
            raise self._refuses_snapshots
        assert archive
        assert header.resume
        assert header.files > 0
        self.arrived.append(f"snapshot {header.turn}")


async def saved(
    sandbox: Sandbox, server: Server, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> ResumeSnapshots:
    """Run a conversation with two calls and a snapshot after each turn."""
    monkeypatch.setattr(resume_snapshots, "is_due", lambda last, since, calls: calls > 0)
    run, tools = begun(template), Tools(["bash"], sandbox, 30.0)
    uploads = cast(Any, server)
    async with (
        TurnSaver(uploads, REF, "v1") as saver,
        ResumeSnapshots(sandbox, uploads, REF, saver) as snapshots,
    ):
        saver.begin(tools)

        async def goes_on() -> None:
            saver.goes_on(run)
            await snapshots.turn_saved(run)

        policy = Told(template, *CALLS[:2], "end")
        await run_agent(run, policy, tools, AgentSpec(), Sampling(), 0, goes_on=goes_on)
        assert server.arrived == [], "the agent does not wait for the server"
        server.open.set()
        await saver.flush()
        await snapshots.finish(run.turns[:2])
        await saver.flush()
        return snapshots


async def test_a_snapshot_is_stored_behind_its_turn(
    sandbox: Sandbox, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    await sandbox.bash("echo noted > notes.txt")
    assert (await saved(sandbox, server, template, monkeypatch)).stopped == ""
    assert server.arrived == ["turns 0+1", "turns 1+1", "snapshot 1"], "the second one waits: one at a time"


async def test_turns_that_are_not_stored_have_no_snapshot(
    sandbox: Sandbox, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(refuses_turns=Fenced("lease 1 is void"))
    await sandbox.bash("echo noted > notes.txt")
    await saved(sandbox, server, template, monkeypatch)
    assert server.arrived == []


@pytest.mark.parametrize("refused_by", ["size", "server", "time"])
async def test_what_cannot_be_saved_costs_no_turn(
    sandbox: Sandbox, template: ChatTemplate, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    server = Server(refuses_snapshots=Invalid("it has no such turn") if refused_by == "server" else None)
    monkeypatch.setattr(resume_snapshots, "longest", lambda since: 0.0 if refused_by == "time" else 60.0)
    if refused_by == "size":
        monkeypatch.setattr(resume_snapshots, "MAX_SNAPSHOT_BYTES", 1000)
        await sandbox.bash("head -c 3000000 /dev/urandom > noise")
    else:
        await sandbox.bash("echo noted > notes.txt")
    await saved(sandbox, server, template, monkeypatch)
    said = {"size": "at most 1000 bytes", "server": "no such turn", "time": "it took longer than 0.0 s"}[refused_by]
    assert said in "; ".join(server.told)
    assert server.arrived == ["turns 0+1", "turns 1+1"]


class Unusable(LeaseRun):
    """A lease whose saved work cannot be used."""

    tried: list[tuple[int, int]]

    async def _run_in_sandbox(self, handler: GuardedHandler) -> RunResult:
        saved = self._handover.saved
        self.tried.append((len(saved.turns), saved.begun_with))
        if saved.turns:
            raise ResumeFailed("it is damaged")
        assert saved.failed == "it is damaged"
        return RunResult(outcome=Outcome(status=Status.COMPLETED), artifact={})


class Stored(Full):
    """A server with turns, and a snapshot behind the first one."""

    async def stored_turns(self, ref: LeaseRef) -> tuple[StoredTurns, list[bytes]]:
        return StoredTurns(snapshot=RolloutSnapshot(turn=1, size=9)), [b"no turn"]


@pytest.mark.parametrize(("resume", "why"), [(False, "`resume` is never"), (True, "the saved turns cannot be read: ")])
async def test_a_rollout_that_begins_again_gets_no_files_of_a_turn(resume: bool, why: str) -> None:
    """A pool may have been changed to `resume: never` meanwhile."""
    lease = LEASE.model_copy(update={"saved_turns": 1, "resume": resume})
    run, handler = work(LeaseRun, Stored(), lease), SimpleNamespace(has_loop=False, loop_differs=False)
    await run._handover.load(cast(GuardedHandler, handler), cast(Any, None))
    saved = run._handover.saved
    assert (saved.turns, saved.snapshot, saved.count) == ((), None, 1)
    assert (saved.failed or "").startswith(why)


async def test_a_damaged_snapshot_leads_to_init_and_damaged_turns_to_the_beginning() -> None:
    run = work(Unusable, Full(), LEASE.model_copy(update={"agent": AgentSpec(type="nothing")}))
    run.tried, run._handover.saved = [], SavedWork(cast(list[SavedTurn], [None] * 3), RolloutSnapshot(turn=2), count=3)
    await run.run()
    assert run.tried == [(3, 2), (3, 0), (0, 0)]
