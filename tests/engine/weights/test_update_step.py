"""Changes of an engine's weights as a table of states and facts, and random worlds with processes that die at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.engine.weights.source import WeightsSource
from rollyard.engine.weights.update_step import (
    ATTEMPTS,
    LOST,
    WAIT_FOR_UPDATE_SECONDS,
    CarriedOut,
    Checkpoint,
    Command,
    Fact,
    Failed,
    FilesRead,
    Observed,
    ProcessBegan,
    TargetSet,
    UpdateState,
    WeightsChange,
    next_step,
)
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.wire.engine import WeightsTarget

INFO = CheckpointInfo({}, {})


def checkpoint(version: str, checksum: str | None = None, folder: str | None = None) -> Checkpoint:
    return Checkpoint(WeightsSource(version, checksum or version, Path(folder or f"/{version}")), INFO)


def to(version: str, **more: Any) -> WeightsTarget:
    return WeightsTarget(version=version, path=f"/{version}", **more)


OLD, NEW = checkpoint("old"), checkpoint("new")
RENAMED, LLAMA = checkpoint("new", "old"), replace(NEW, info=CheckpointInfo({"model_type": "llama"}, {}))
TARGET, MOVED, V3 = to("new", mode="Pause"), to("new", mode="Pause", transfer=True), to("v3")
SERVING = UpdateState(TARGET, tried=TARGET, served=OLD, life=1, pinned_life=1, proven_life=1)
OVERWRITTEN = replace(NEW.source, checksum="x")
PAUSED = WAIT_FOR_UPDATE_SECONDS


def empty(step: str, **more: Any) -> UpdateState:
    """An engine that has nothing to start on."""
    return replace(UpdateState(TARGET, tried=TARGET), **{"step": step, **more})


def begun(step: str, **more: Any) -> UpdateState:
    """A process that has not yet proven its weights."""
    return replace(SERVING, **{"step": step, "proven_life": -1, **more})


def reading(target: WeightsTarget = TARGET, **more: Any) -> UpdateState:
    return replace(SERVING, **{"step": "Reading", "target": target, "tried": target, **more})


def during(step: str, way: Any = "Reload", error: str = "", **more: Any) -> UpdateState:
    """A change that has come this far, at its first attempt."""
    change = WeightsChange(NEW, way, error=error)
    return replace(SERVING, **{"step": step, "attempts": 1, "change": change, **more})


def found(checkpoint: Checkpoint = NEW, **more: Any) -> FilesRead:
    return FilesRead(5.0, checkpoint, **more)


def change(way: Any, **more: Any) -> dict[str, Any]:
    return {"change": WeightsChange(NEW, way, **more)}


def refused(why: str) -> Failed:
    return Failed("Refused", why, 5.0)


DONE, SAME, KEPT = CarriedOut(), CarriedOut(unchanged=True), found(can_keep_requests=True)
READY, NOT_READY = Observed(5.0, True), Observed(5.0, False)
BROKE, SILENT, SPOILED = Failed("Broke", "500"), Failed("TransferLost", "silent"), Failed("TransferSpoiled", "silent")
WRONG, CHANGED = Failed("Wrong", "ProbeFailed"), Failed("FilesChanged", "ChecksumMismatch")
TIED, LORA, NO_ROUTES = (
    found(why_not_loadable="tied"),
    found(why_unsupported="lora"),
    found(why_no_transfer="no routes"),
)

REPLACED, NOT_STARTED = Failed("Replaced", "another"), Failed("NotStarted", "LoadFailed: llama")
Row = tuple[str, UpdateState, Fact, str, dict[str, Any]]
# fmt: off
TABLE: list[Row] = [
    # a start
    ("nothing to start on",       empty("Waiting"), NOT_READY, "Reading: Read", {"tried": TARGET}),
    ("its files are there",       empty("Reading"), found(), "Restarting: Restart", {"served": NEW, "error": ""}),
    ("no transfer at a start",    empty("Reading", target=MOVED, tried=MOVED), found(), "Restarting: Restart",
        {"note": "NoTransfer: it started with the folder"}),
    ("a later target",            empty("Reading", target=MOVED), found(), "Reading: Read", {"tried": MOVED}),
    ("the files are missing",     empty("Reading"), refused("gone"), "Waiting:",
        {"error": "gone", "failed": TARGET, "retry_at": 15.0, "retry_after": 20.0}),
    ("not yet",                   empty("Waiting", failed=TARGET, retry_at=6), NOT_READY, "Waiting:", {}),
    ("time to look again",        empty("Waiting", failed=TARGET, retry_at=5), NOT_READY, "Reading: Read", {}),
    ("time for another target",   empty("Waiting", failed=MOVED, retry_at=6), NOT_READY, "Reading: Read", {}),
    ("no model of the pool",      empty("Reading", target=None, tried=None), refused("gone"), "Reading: GiveUp",
        {"fatal": "gone"}),
    ("replaced while it reads",   empty("Reading", target=V3), REPLACED, "Waiting:", {"error": "", "served": None}),
    ("no process gets ready",     begun("Waiting"), NOT_STARTED, "Waiting:",
        {"served": None, "error": "LoadFailed: llama", "failed": TARGET, "retry_at": math.inf, "phase": "Failed"}),
    ("replaced before it is ready", begun("Waiting", served=NEW, target=V3), NOT_READY, "Reading: Read",
        {"served": None, "tried": V3}),
    ("a process began",           begun("Restarting"), DONE, "Waiting:", {}),
    ("it is not ready",           begun("Waiting"), NOT_READY, "Waiting:", {}),
    ("it is ready",               begun("Waiting"), READY, "Loading: Load", {"pinned_life": 1, "before": None}),
    ("it is loaded",              begun("Loading"), DONE, "Probing: Prove", {"phase": ""}),
    ("it is proven",              begun("Probing"), DONE, "Waiting: Accept", {"proven": True}),
    ("the proof broke",           begun("Probing"), BROKE, "Waiting: Pause", {"broken_proofs": ("500",)}),
    ("it broke too often",        begun("Waiting", broken_proofs=("500",) * ATTEMPTS), READY, "Waiting: GiveUp",
        {"fatal": "ProbeFailed: 500"}),
    ("it has other weights",      begun("Probing"), WRONG, "Probing: GiveUp", {"fatal": "ProbeFailed"}),
    ("other files",               begun("Loading"), CHANGED, "Reading: Read",
        {"served": None, "was": OLD.source, "error": "ChecksumMismatch", "proven": False}),
    ("under the same version",    empty("Reading", was=OVERWRITTEN), found(), "Waiting:", {"served": None, "failed": TARGET}),
    ("as another version",        empty("Reading", was=OLD.source), found(), "Restarting: Restart",
        {"served": NEW, "was": None}),
    # a target
    ("it is reached",             replace(SERVING, served=NEW, error="x"), READY, "Waiting:", {"error": ""}),
    ("it is due",                 SERVING, READY, "Reading: Read", {"phase": "", "proven": True}),
    ("it waits for the engine",   SERVING, NOT_READY, "Waiting:", {}),
    ("its files are missing",     reading(), refused("gone"), "Waiting:", {"phase": "Failed", "retry_at": 15.0}),
    ("nothing can serve it",      reading(), LORA, "Waiting:", {"error": "lora", "failed": TARGET}),
    ("another architecture",      reading(), found(LLAMA), "Waiting:", {"phase": "Failed", "attempts": 0}),
    ("the process ended",         reading(life=2), found(), "Waiting:", {"attempts": 0, "error": ""}),
    ("the same weights",          reading(MOVED), found(RENAMED), "Renaming: Rename",
        {"note": "NoTransfer: it already had these weights", "phase": ""}),
    ("they are renamed",          during("Renaming"), DONE, "Waiting: Accept", {"served": NEW, "proven": True}),
    ("requests are kept",         reading(), KEPT, "Draining: CloseEntry Stop",
        change("Reload", keep_requests=True) | {"entry_wait_seconds": PAUSED, "phase": "Draining"}),
    ("they cannot be kept",       reading(), found(), "Draining: CloseEntry Stop", change("Reload")),
    ("nor over a restart",        reading(), replace(TIED, can_keep_requests=True), "Draining: CloseEntry Stop",
        change("Restart")),
    ("nor can a gang restart",    reading(can_restart=False), TIED, "Waiting:", {"phase": "Failed", "proven": True}),
    ("a transfer",                reading(MOVED), KEPT, "Draining: CloseEntry Stop",
        change("Transfer", keep_requests=True) | {"note": ""}),
    ("no transfer",               reading(MOVED), NO_ROUTES, "Draining: CloseEntry Stop",
        change("Reload") | {"note": "NoTransfer: no routes"}),
    ("stopped",                   during("Draining"), DONE, "Loading: Load", {"phase": "Loading"}),
    ("stopped for a restart",     during("Draining", "Restart"), DONE, "Restarting: Restart", {"phase": "Loading"}),
    ("stopped for a transfer",    during("Draining", "Transfer"), DONE, "Transferring: Receive", {}),
    ("moved",                     during("Transferring", "Transfer"), DONE, "Loading: Load", change("Transfer")),
    ("not moved",                 during("Transferring", "Transfer"), SILENT, "Loading: Load",
        change("Reload") | {"note": "silent"}),
    ("half moved",                during("Transferring", "Transfer"), SPOILED, "Restarting: Restart",
        change("Restart") | {"note": "silent"}),
    ("half moved in a gang",      during("Transferring", "Transfer", can_restart=False), SPOILED, "Transferring: GiveUp", {}),
    ("loaded in place",           during("Loading"), DONE, "Probing: Prove",
        {"phase": "Probing", "before": OLD.source, "at_work": NEW}),
    ("proven in place",           during("Probing", entry_wait_seconds=9.0), DONE, "Waiting: Accept",
        {"served": NEW, "proven": True, "phase": "", "entry_wait_seconds": 0.0}),
    ("it answers as before",      during("Probing"), SAME, "Restarting: Restart", change("Restart") | {"note": ""}),
    ("ready on the new weights",  during("Restarting", "Restart", life=2), DONE, "Loading: Load",
        {"pinned_life": 2, "before": None}),
    ("never ready on them",       during("Restarting", "Restart", life=3), refused("cut"), "Waiting:",
        {"error": "LoadFailed: cut", "served": OLD, "proven": False}),
    # a change in vain
    ("wrong in place",            during("Probing"), WRONG, "Restarting: Restart", {"at_work": OLD, "phase": "Loading"}),
    ("an error, while it lives",  during("Loading"), BROKE, "Restarting: Restart", change("Undo", error="500")),
    ("lost in a gang",            during("Loading", can_restart=False), LOST, "Loading: GiveUp", {}),
    ("lost on the new weights",   during("Probing", "Restart", life=3), LOST, "Restarting: Restart",
        change("Undo") | {"at_work": OLD}),
    ("lost too often",            during("Loading", attempts=ATTEMPTS), LOST, "Restarting: Restart",
        change("Undo", error=LOST.why)),
    ("back, as it failed",        during("Restarting", "Undo", "9", life=2), DONE, "Waiting:",
        {"error": "9", "failed": TARGET, "served": OLD, "proven": False}),
    ("back, to try again",        during("Restarting", "Undo", life=2), DONE, "Waiting:", {"error": "", "failed": None}),
    # a new target
    ("during a change",           during("Loading"), TargetSet(V3), "Loading:", {"target": V3, "tried": TARGET}),
    ("withdrawn in time",         empty("Waiting", error="gone", failed=TARGET), TargetSet(None), "Waiting:",
        {"target": None, "error": "", "phase": ""}),
    ("withdrawn while it is read", empty("Reading"), TargetSet(None), "Reading:", {"target": None}),
    ("replaced while it is read", reading(), REPLACED, "Waiting:", {"phase": "", "proven": True}),
    ("withdrawn too late",        SERVING, TargetSet(None), "Waiting:", {"target": TARGET}),
]
# fmt: on


@pytest.mark.parametrize(("state", "fact", "then", "fields"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(state: UpdateState, fact: Fact, then: str, fields: dict[str, Any]) -> None:
    after, commands = next_step(state, fact)
    assert " ".join([f"{after.step}:", *commands]) == then
    assert {name: getattr(after, name) for name in fields} == fields


CHANGES = {
    "Renaming": CarriedOut(),
    "Draining": CarriedOut(),
    "Transferring": Failed("TransferLost", "TransferLost: the engine ended"),
    "Loading": CarriedOut(),
    "Probing": CarriedOut(),
}


@pytest.mark.parametrize("step", CHANGES)
@pytest.mark.parametrize("fact", ["its outcome", "Lost"])
def test_a_process_that_is_gone_leaves_the_old_weights_and_the_target_is_tried_again(step: str, fact: str) -> None:
    state, closed = next_step(during(step, "Transfer" if step == "Transferring" else "Reload"), ProcessBegan(2))
    assert (state.proven, state.report.version, closed) == (False, "", ("CloseEntry",))
    state, commands = next_step(state, CHANGES[step] if fact != "Lost" else LOST)
    assert (state.step, commands, state.error, state.served) == ("Waiting", (), "", OLD)
    state, commands = next_step(state, Observed(9, True))
    assert (state.step, commands, state.at_work) == ("Loading", ("Load",), OLD)


# random worlds

SPEC = "spec"
TARGETS = [
    to("v1", mode="Drain"),
    to("v2", mode="Pause"),
    to("v2", mode="Pause", transfer=True, attempt=2),
    WeightsTarget(version="v3", path="/v1", checksum="/v1", mode="Abort"),
    WeightsTarget(version="v4", path="/gone"),
    WeightsTarget(version="v5", path="/v2", checksum="no"),
    None,
]


@dataclass
class World:
    """An executor whose engine really has weights: of the folder that it was started on or has loaded."""

    state: UpdateState
    draw: Any
    now: float = 0.0
    process: str = ""
    """Folder of which the present process has the weights."""
    starts_on: str = ""
    open: bool = False
    ended: bool = False
    work: list[Command] = field(default_factory=list)

    def tell(self, fact: Fact) -> None:
        self.state, commands = next_step(self.state, fact)
        works = [c for c in commands if c not in ("CloseEntry", "Accept", "GiveUp")]
        assert works == list(commands[len(commands) - len(works) :]), "only the last command takes time"
        assert len(works) <= 1
        for command in commands:
            self.open = (self.open or command == "Accept") and command != "CloseEntry"
            self.ended = self.ended or command == "GiveUp"
            if command == "Accept":
                self.starts_on = self.process
        if not isinstance(fact, TargetSet | ProcessBegan):
            self.work = works
        self.check()

    def check(self) -> None:
        report = self.state.report
        assert bool(report.version) == self.state.proven
        if self.open:
            assert self.state.proven
            assert self.state.served is not None
            assert str(self.state.served.source.folder) == self.process, "requests meet the weights that are reported"
        else:
            assert self.work or self.ended or not self.state.proven, "a proven engine at rest lets requests in"
        assert (report.phase == "Failed") <= bool(report.error)

    def begin_process(self) -> None:
        self.process = self.starts_on
        self.tell(ProcessBegan(self.state.life + 1))

    def go_on(self, fortunate: bool) -> None:
        """The outcome of the work under way, or what is seen without any."""
        self.now += 700.0
        if not self.work or self.work == ["Pause"]:
            return self.tell(Observed(self.now, fortunate or self.draw(st.booleans())))
        good = fortunate or self.draw(st.booleans())
        self.tell(getattr(self, f"_{self.work[0].lower()}")(good))

    def _read(self, good: bool) -> Fact:
        target = self.state.tried
        folder = SPEC if target is None else target.path
        if folder == "/gone" or (target is not None and target.checksum not in (None, folder)):
            return Failed("Refused", "refused", self.now)
        version = SPEC if target is None else target.version
        found = FilesRead(self.now, checkpoint(version, folder, folder))
        return found if good else replace(found, why_not_loadable="tied", why_no_transfer="no routes")

    def _failed(self, *kinds: Any) -> Fact:
        return Failed(self.draw(st.sampled_from(kinds)), "why", self.now)

    def _stop(self, good: bool) -> Fact:
        return CarriedOut() if good else self._failed("Broke", "Lost")

    _rename = _stop

    def _receive(self, good: bool) -> Fact:
        if good and not self.state.replaced:
            self.process = str(self.state.at_work.source.folder)
            return CarriedOut()
        return Failed(
            "TransferLost" if good else self.draw(st.sampled_from(["TransferLost", "TransferSpoiled"])), "why"
        )

    def _load(self, good: bool) -> Fact:
        if not good:
            self.process = self.process if self.state.replaced else "spoiled"
            return self._failed("Broke", "Lost")
        if not self.state.replaced and self.draw(st.integers(0, 9)):  # else it is ignored without an error
            self.process = str(self.state.at_work.source.folder)
        return CarriedOut()

    def _prove(self, good: bool) -> Fact:
        if self.process != str(self.state.at_work.source.folder):
            return CarriedOut() if self.state.replaced else Failed("Wrong", "wrong")
        return CarriedOut(self.state.before is not None and not good) if good else self._failed("Broke", "Lost")

    def _restart(self, good: bool) -> Fact:
        self.starts_on = str(self.state.at_work.source.folder)
        self.begin_process()
        if good or not self.state.changes_by("Restart"):
            return CarriedOut()
        assert self.state.served is not None
        self.starts_on = str(self.state.served.source.folder)
        self.begin_process()
        return Failed("Refused", "cut short")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_requests_meet_only_proven_weights_and_every_target_ends_whatever_dies_in_between(data: st.DataObject) -> None:
    world = World(UpdateState(data.draw(st.sampled_from(TARGETS)), data.draw(st.booleans())), data.draw)
    for _ in range(data.draw(st.integers(0, 30))):
        event = data.draw(st.sampled_from(["go on", "go on", "go on", "target", "death"]))
        if event == "target":
            world.tell(TargetSet(data.draw(st.sampled_from(TARGETS))))
        elif event == "death" and world.state.life and world.state.can_restart:
            world.begin_process()
        else:
            world.go_on(fortunate=False)
        if world.ended:
            return
    for _ in range(60):
        world.go_on(fortunate=True)
        if world.ended or (world.open and not world.work and (world.state.is_done or world.state.error)):
            return
    # an engine that has never had weights to start on waits for them
    assert world.state.served is None
    assert world.state.error
