"""`next_step(state, fact) -> (state, commands)`: decides every change of an engine's weights. A pure function.

Requests go only to a process that has proven its weights (`verification`). A target is checked before the engine is
changed. A change of the engine ends in one of two ways: the engine has proven the new weights, or another process
starts on the last proven weights. If no other process can be started, the allocation is given up.

    no checkpoint --------> Reading --> Restarting --> Waiting
    ready, not proven ----> Loading --> Probing -----> Waiting, proven
    a target is due ------> Reading --> Renaming -----------------------------------> Waiting, proven
                               |
                               +--> Draining ---------------> Loading --> Probing --> Waiting, proven
                                      |  |                     ^   ^         |
                                      |  +--> Transferring ----+   |         | output is as before
                                      |            | spoiled       |         |
                                      +------------+-----------> Restarting <+
                                        not possible in place

    fact                         while                     what follows
    Failed: Replaced             a target is read          nothing changes, the new target is due
    Failed: Refused              a target is read          nothing changes, the target is read again later
    Failed: Refused              the pool's model is read  the allocation is given up
    Failed: NotStarted           it starts on a target     the server may name other weights, else the allocation ends
    Failed: Refused              the engine restarts       the engine starts on the last proven weights
    Failed: Broke, Lost, Wrong   the engine is changed     Restarting on the last proven weights; Lost: another attempt
    Failed: Broke, Lost          a new process is proven   another proof, at most `ATTEMPTS` proofs
    Failed: Wrong                a new process is proven   the allocation is given up
    Failed: FilesChanged         a new process is proven   the files are read again (Reading), nothing is served
    ProcessBegan                 any step                  no request is let in, the earlier process is Lost

One file, so that the drawing and the code that it shows are read together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from rollyard.engine.weights.source import WeightsSource
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.wire.engine import WeightsPhase, WeightsReport, WeightsTarget

WAIT_FOR_UPDATE_SECONDS = 240.0
"""Longest wait of a request that arrives during a change of weights. It is shorter than the 300 s for which a client
waits for its first token."""
RETRY_FIRST_SECONDS, RETRY_CAP_SECONDS = 10.0, 600.0
"""First and longest wait before the files of a refused target are read again. The target may have been refused because
its files had not been copied completely."""
ATTEMPTS = 3
"""Greatest number of attempts at an update if the engine ends during each attempt; also the greatest number of attempts
to prove the weights of a new process."""
NO_RESTART = "an engine that spans nodes cannot be restarted, so it is replaced"

UpdateStep = Literal["Waiting", "Reading", "Renaming", "Draining", "Transferring", "Loading", "Probing", "Restarting"]
ChangeWay = Literal["Reload", "Transfer", "Restart", "Undo"]
Command = Literal[
    "CloseEntry", "Read", "Rename", "Stop", "Receive", "Load", "Prove", "Restart", "Accept", "Pause", "GiveUp"
]
"""Work that `updater.py` does after a call of `next_step`. The arguments of the work are in the new state.
CloseEntry, Accept, Pause and GiveUp yield no fact; the outcome of any other command is the next fact."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and what was read from their folder."""

    source: WeightsSource
    info: CheckpointInfo | None
    """None if the folder could not be read before a start. The engine then reports the error itself."""


@dataclass(frozen=True)
class WeightsChange:
    """A change of the engine to a target."""

    new: Checkpoint
    way: ChangeWay = "Reload"
    """Undo: the engine returns to its previous weights."""
    keep_requests: bool = False
    error: str = ""
    """With Undo: the reason why the target failed; empty if the target is tried again."""


@dataclass(frozen=True)
class UpdateState:
    target: WeightsTarget | None
    """Weights to serve; None for the pool's own model."""
    can_restart: bool = True
    """Whether the engine can be started more than once."""
    step: UpdateStep = "Waiting"
    tried: WeightsTarget | None = None
    """The target that is being checked or applied; `target` may be newer."""
    change: WeightsChange | None = None
    served: Checkpoint | None = None
    """The last proven weights. During a start without a `change`: the weights on which the engine starts."""
    was: WeightsSource | None = None
    """Weights whose files have changed since the engine started on them. A start on other files with the same version
    is refused."""
    life: int = 0
    """Sequence number of the current process; 0 before the first process."""
    pinned_life: int = -1
    """Sequence number of the process that is being changed or proven."""
    proven_life: int = -1
    broken_proofs: tuple[str, ...] = ()
    """Errors of all failed attempts to prove the weights of the current process."""
    entry_wait_seconds: float = 0.0
    """Time for which new requests may wait while the proxy's entry is closed."""
    error: str = ""
    failed: WeightsTarget | None = None
    """The target to which `error` belongs."""
    note: str = ""
    """Reason why a requested transfer by the trainer was not used; empty if there is none."""
    attempts: int = 0
    """Number of changes of the engine that have begun for the target."""
    retry_at: float = math.inf
    retry_after: float = RETRY_FIRST_SECONDS
    fatal: str = ""
    """Reason why the allocation is given up."""

    @property
    def proven(self) -> bool:
        """Whether the current process has proven that it serves the right weights."""
        return self.served is not None and self.proven_life == self.life

    @property
    def starts_on_target(self) -> bool:
        """Whether the engine starts on a target, without weights that it has proven before."""
        return self.can_restart and self.served is not None and self.tried is not None and self.proven_life < 0

    @property
    def replaced(self) -> bool:
        """Whether the process `pinned_life` has been replaced by another."""
        return self.life != self.pinned_life

    @property
    def is_done(self) -> bool:
        return self.target is None or (self.served is not None and self.served.source.matches(self.target))

    def changes_by(self, way: ChangeWay) -> bool:
        return self.change is not None and self.change.way == way

    @property
    def before(self) -> WeightsSource | None:
        """Weights that the change replaces in place; None if the process was started on the weights to prove."""
        in_place = self.changes_by("Reload") or self.changes_by("Transfer")
        return self.served.source if in_place and self.served is not None else None

    @property
    def at_work(self) -> Checkpoint:
        """Weights for the next load, proof or start."""
        found = self.change.new if self.change is not None and not self.changes_by("Undo") else self.served
        assert found is not None
        return found

    @property
    def phase(self) -> WeightsPhase:
        if self.change is not None:
            match self.step:
                case "Draining" | "Transferring" | "Loading" | "Probing":
                    return self.step
                case "Restarting":
                    return "Loading"
        return "Failed" if self.error else ""

    @property
    def report(self) -> WeightsReport:
        source = self.served.source if self.served is not None and self.proven else None
        return WeightsReport(
            version=source.version if source is not None else "",
            checksum=source.checksum if source is not None else "",
            phase=self.phase,
            error=self.error,
            attempt=self.failed.attempt if self.failed is not None and self.error else None,
            note=self.note,
        )

    @property
    def why_transfer_ends(self) -> str:
        """Reason to stop waiting for the trainer; empty if there is none."""
        if self.replaced:
            return "TransferLost: the engine ended"
        return "" if self.target == self.tried else "TransferLost: the server has started another update"


@dataclass(frozen=True)
class TargetSet:
    """The server's target, perhaps the same as before.

    None changes nothing, with one exception: if a target has failed or is still being read, and the engine has no weights
    to start on, the engine takes the pool's own model.
    """

    target: WeightsTarget | None


@dataclass(frozen=True)
class ProcessBegan:
    life: int


@dataclass(frozen=True)
class Observed:
    """The time (loop seconds), and whether the engine is ready. This fact comes only while no command is carried
    out."""

    at: float
    ready: bool


@dataclass(frozen=True)
class FilesRead:
    at: float
    found: Checkpoint
    why_unsupported: str = ""
    """Reason why no process of this engine can serve the weights; empty if a process can."""
    why_not_loadable: str = ""
    """Reason why the current process cannot change to the weights; empty if the process can."""
    why_no_transfer: str = ""
    """Reason why a trainer cannot transfer the weights to the current process; empty if a trainer can."""
    can_keep_requests: bool = False
    """Whether running requests can continue with the weights."""


@dataclass(frozen=True)
class CarriedOut:
    unchanged: bool = False
    """Whether the engine's output is the same as before the change, although it should differ."""


@dataclass(frozen=True)
class Failed:
    kind: Literal[
        "Replaced", "NotStarted", "Refused", "FilesChanged", "TransferLost", "TransferSpoiled", "Broke", "Lost", "Wrong"
    ]
    """Replaced: another target came while the files were read. NotStarted: no process on the target got ready.
    TransferSpoiled: the engine may hold a part of the new weights. Broke: the engine's state is unknown. Lost: the engine did
    not answer. Wrong: the engine has other weights than expected."""
    why: str
    at: float = 0.0


Fact = TargetSet | ProcessBegan | Observed | FilesRead | CarriedOut | Failed
Step = tuple[UpdateState, tuple[Command, ...]]
LOST = Failed("Lost", "it ended during the weights update")


def next_step(state: UpdateState, fact: Fact) -> Step:
    """Return the state after the fact, and the commands, in order."""
    match fact:
        case TargetSet():
            return _set_target(state, fact.target), ()
        case ProcessBegan():
            return replace(state, life=fact.life, broken_proofs=()), ("CloseEntry",)
        case Observed():
            return _begin(state, fact)
        case FilesRead():
            return _start_on(state, fact) if state.served is None else _check(state, state.served, fact)
        case Failed(kind="Replaced"):
            return replace(state, step="Waiting"), ()
        case Failed(kind="NotStarted"):
            return _fail(replace(state, served=None), fact.why), ()
        case Failed(kind="Refused"):
            return _refuse(state, fact.why, fact.at)
        case Failed(kind="FilesChanged"):
            return _read(replace(state, error=fact.why, served=None, was=state.at_work.source))
        case Failed(kind="TransferLost" | "TransferSpoiled"):
            return _lose_transfer(replace(state, note=fact.why), fact)
        case Failed():
            return _break(state, fact)
        case CarriedOut() if state.step == "Restarting":
            return _begin_life(state)
        case CarriedOut():
            return _break(state, LOST) if state.replaced else _go_on(state, fact)


def _set_target(state: UpdateState, target: WeightsTarget | None) -> UpdateState:
    withdrawn = target is None and state.served is None and (state.error or state.step == "Reading")
    if target == state.target or (target is None and not withdrawn):
        return state
    return replace(state, target=target, failed=None, error="", note="", attempts=0, retry_after=RETRY_FIRST_SECONDS)


def _begin(state: UpdateState, fact: Observed) -> Step:
    due = state.failed is None or state.failed != state.target or fact.at >= state.retry_at
    if state.served is None:
        return _read(state) if due else (state, ())
    if state.starts_on_target and state.target != state.tried and not state.is_done:
        return _read(replace(state, served=None))  # the process may need minutes until it is ready, or never be ready
    if not fact.ready:
        return state, ()
    if not state.proven:
        if len(state.broken_proofs) >= ATTEMPTS:
            return _give_up(state, f"ProbeFailed: {state.broken_proofs[-1]}")
        return replace(state, step="Loading", pinned_life=state.life), ("Load",)
    if state.is_done:
        return replace(state, error=""), ()  # the failed target is no longer current
    return _read(state) if due else (state, ())


def _read(state: UpdateState) -> Step:
    return replace(state, step="Reading", tried=state.target, pinned_life=state.life), ("Read",)


def _refuse(state: UpdateState, why: str, at: float) -> Step:
    if state.step == "Restarting":
        return _fail(state, f"LoadFailed: {why}"), ()
    if state.served is None and state.tried != state.target:
        return _read(state)
    if state.served is None and state.tried is None:
        return _give_up(state, why)
    return _fail(state, why, at), ()


def _fail(state: UpdateState, why: str, at: float = math.inf) -> UpdateState:
    """Record that the target has failed. If `at` is given, the target is tried again later."""
    later, wait = at + state.retry_after, min(2 * state.retry_after, RETRY_CAP_SECONDS)
    state = replace(state, step="Waiting", change=None, error=why, failed=state.tried)
    return replace(state, retry_at=later, retry_after=wait)


def _give_up(state: UpdateState, why: str) -> Step:
    return replace(state, fatal=why), ("GiveUp",)


def _start_on(state: UpdateState, fact: FilesRead) -> Step:
    tried, source, was = state.tried, fact.found.source, state.was
    if tried != state.target:
        return _read(state)
    if fact.why_unsupported:
        return _refuse(state, fact.why_unsupported, fact.at)
    if was is not None and source.version == was.version and source.checksum != was.checksum:
        return _refuse(state, was.mismatch_text(source.checksum), fact.at)
    note = "NoTransfer: it started with the folder" if tried is not None and tried.transfer else ""
    return replace(state, step="Restarting", served=fact.found, was=None, error="", note=note), ("Restart",)


def _check(state: UpdateState, served: Checkpoint, fact: FilesRead) -> Step:
    new, tried, before, after = fact.found, state.tried, served.info, fact.found.info
    assert tried is not None
    incompatible = before.incompatibility(after) if before is not None and after is not None else ""
    if why := fact.why_unsupported or incompatible:
        return _fail(state, why), ()
    if not state.proven:  # the process ended: the target is due again after a new process has proven its weights
        return replace(state, step="Waiting"), ()
    state = replace(state, attempts=state.attempts + 1)
    if new.source.checksum == served.source.checksum and new.source.adapter is None and served.source.adapter is None:
        note = "NoTransfer: it already had these weights" if tried.transfer else ""
        change = WeightsChange(Checkpoint(new.source, before))
        return replace(state, step="Renaming", change=change, note=note), ("Rename",)
    if fact.why_not_loadable and not state.can_restart:
        return _fail(state, f"NotInPlace: {fact.why_not_loadable}; {NO_RESTART}"), ()
    same = before is None or after is None or before.same_computation(after)
    why_folder = fact.why_not_loadable or ("" if same else "config.json differs") or fact.why_no_transfer
    keep = tried.mode == "Pause" and not fact.why_not_loadable and fact.can_keep_requests
    change = WeightsChange(new, "Restart" if fact.why_not_loadable else "Reload", keep)
    state = replace(state, step="Draining", error="", note="", entry_wait_seconds=WAIT_FOR_UPDATE_SECONDS)
    if tried.transfer and why_folder:
        state = replace(state, note=f"NoTransfer: {why_folder}")
    elif tried.transfer:
        change = replace(change, way="Transfer")
    return replace(state, change=change), ("CloseEntry", "Stop")


def _go_on(state: UpdateState, done: CarriedOut) -> Step:
    match state.step:
        case "Draining" if state.changes_by("Transfer"):
            return replace(state, step="Transferring"), ("Receive",)
        case "Draining" if state.changes_by("Restart"):
            return _restart_on_new(state)
        case "Draining" | "Transferring":
            return replace(state, step="Loading"), ("Load",)
        case "Loading":
            return replace(state, step="Probing"), ("Prove",)
        case "Probing" if done.unchanged:
            why = "ReloadIgnored: the engine answers with the new weights exactly as before"
            if not state.can_restart:
                return _break(state, Failed("Wrong", why))
            return _restart_on_new(replace(state, note=why if state.changes_by("Transfer") else state.note))
    return _accept(state)


def _lose_transfer(state: UpdateState, lost: Failed) -> Step:
    change = state.change
    assert change is not None
    if state.replaced:
        return _break(state, LOST)
    if lost.kind == "TransferLost":
        return replace(state, step="Loading", change=replace(change, way="Reload")), ("Load",)
    if not state.can_restart:
        return _break(state, Failed("Wrong", f"{lost.why}; {NO_RESTART}"))
    return _restart_on_new(state)


def _restart_on_new(state: UpdateState) -> Step:
    assert state.change is not None
    return replace(state, step="Restarting", change=replace(state.change, way="Restart")), ("Restart",)


def _begin_life(state: UpdateState) -> Step:
    if state.change is None:
        return replace(state, step="Waiting"), ()
    if state.change.way == "Undo":
        return _end_undo(state, state.change.error), ()
    return replace(state, step="Loading", pinned_life=state.life), ("Load",)


def _accept(state: UpdateState) -> Step:
    state = replace(state, served=state.at_work, proven_life=state.life, entry_wait_seconds=0.0)
    error = "" if state.is_done else state.error
    return replace(state, step="Waiting", change=None, error=error), ("Accept",)


def _break(state: UpdateState, failed: Failed) -> Step:
    change = state.change
    if change is None:
        if failed.kind == "Wrong":
            return _give_up(state, failed.why)
        broken = () if state.replaced else (*state.broken_proofs, failed.why)
        return replace(state, step="Waiting", broken_proofs=broken), ("Pause",)
    error = "" if failed.kind == "Lost" and state.attempts < ATTEMPTS else failed.why
    starts_on_new = change.way == "Restart" and state.step != "Draining"
    if state.replaced and not starts_on_new:
        return _end_undo(state, error), ()
    if not state.can_restart:
        return _give_up(state, "WeightsLost: the update failed in the middle, and the engine cannot be restarted")
    return replace(state, step="Restarting", change=replace(change, way="Undo", error=error)), ("Restart",)


def _end_undo(state: UpdateState, error: str) -> UpdateState:
    return _fail(state, error) if error else replace(state, step="Waiting", change=None)
