"""Saved turns through `step` and the store: seeded histories of faults, against a model with nothing but chains.

The body of a turn names the body before it, and a snapshot the body of its turn. Behind that name a body has the state of an
environment, which counts all that was said. So a mixture of two states shows.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import zstandard

from rollyard.core.errors import Fenced, Invalid, TooLarge
from rollyard.kinds.failure_table import WEIGHTS_STALE
from rollyard.kinds.resumption import Resumption
from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.kinds.rollout_history import HistoryEvent
from rollyard.server.rollouts import saved_turns
from rollyard.server.rollouts.history import history_of
from rollyard.server.rollouts.record_changes import RecordChanges
from rollyard.server.rollouts.saved_turns import TurnsUpload, put_resume_snapshot, split_turns, turns_report
from rollyard.server.rollouts.step import Cancelled, Event, Finished, Granted, Lost, Outdated, RunStored
from rollyard.store import tables
from rollyard.store.base import BlobRef, RolloutRecord
from rollyard.store.blobs import PackWriter
from rollyard.store.rollout_transaction import Transaction
from rollyard.store.writer import WriteUnit
from rollyard.trajectory.frames import framed, sealed
from rollyard.wire.node import LeaseRef, SnapshotHeader, TurnsHeader
from tests.support.make import rollout

FAULT = RolloutError(stage=Stage.RUN, reason="SandboxLost", message="it died")


@dataclass
class Holder:
    """A node agent with a lease. It may not know that the lease is void."""

    fence: int
    chain: list[bytes]
    """Its conversation."""
    environment: bytes
    """State of its environment, which was restored from the last turn of the chain, and goes on from there."""
    stored: int
    """Number of turns that it knows to be stored."""
    resumed: Resumption | None = None
    """Report that it has not sent yet."""

    def take_turn(self, word: str) -> None:
        """Add a turn that fits behind the ones before alone."""
        name = hashlib.sha256(b"".join(self.chain[-1:]) + word.encode()).digest()
        self.environment = state_after([self.environment, name])
        self.chain.append(name + self.environment)


def state_after(names: list[bytes]) -> bytes:
    """Return the state of an environment after these turns."""
    return functools.reduce(lambda state, name: hashlib.sha256(state + name).digest(), names)


@dataclass
class Site:
    """The server's transaction over a real database, and a model of what it must have."""

    db: sqlite3.Connection
    packs: PackWriter
    chance: random.Random
    archives: dict[str, bytes] = field(default_factory=dict)
    """sha256 of an archive -> the chain's last turn when it was taken."""
    holders: list[Holder] = field(default_factory=list)
    turns: list[bytes] = field(default_factory=list)
    """Turns that must be stored."""
    snapshot: int = 0
    """Turn whose snapshot must be stored; 0: none."""
    seen: Counter[str] = field(default_factory=Counter)
    words: int = 0
    told: list[str] = field(default_factory=list)
    """Sentences of the history about turns that are not saved."""

    def write(self, change: Callable[[Transaction], None]) -> bool:
        """Run a change as the writer does; sometimes the server dies before its commit. Return whether it is stored."""
        self.db.execute("BEGIN")
        try:
            change(Transaction(WriteUnit(self.db, self.packs)))
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        crashed = self.chance.random() < 0.1
        self.db.execute("ROLLBACK" if crashed else "COMMIT")
        self.seen["crash"] += crashed
        return not crashed

    def record(self) -> RolloutRecord:
        found = Transaction(WriteUnit(self.db, self.packs)).get("default", "r")
        assert found is not None
        return found

    def step(self, event: Event) -> bool:
        def change(tx: Transaction) -> None:
            record = tx.get("default", "r")
            assert record is not None
            RecordChanges().step(tx, record, event)

        return self.write(change)

    # what happens

    def grant(self) -> None:
        record = self.record()
        if record.status is not Status.QUEUED or not self.step(Granted(1.0, "u/i", "n", {})):
            return
        if record.stage is Stage.EVAL:
            self.holders.append(Holder(record.fence + 1, [], b"", 0))
            return
        state, stored = Transaction(WriteUnit(self.db, self.packs)).saved_turns(record)
        assert stored == self.turns
        if state.snapshot is not None:  # it belongs to a turn of this very conversation
            assert self.archives[state.snapshot.about.sha256] == stored[state.snapshot.about.turn - 1]
        kept = self.chance.randint(0, len(stored)) if self.chance.random() < 0.4 else len(stored)
        chain = stored[:kept]
        environment = chain[-1][32:] if chain else b""
        assert environment == state_after([b"", *(turn[:32] for turn in chain)])
        holder = Holder(record.fence + 1, chain, environment, kept)
        if kept < len(stored) and self.chance.random() < 0.5:  # a call had another result: the turn is stored anew
            holder.take_turn(self.word())
        if stored:
            holder.resumed = Resumption(turn=len(chain), dropped=len(stored) - len(chain))
        self.holders.append(holder)

    def work(self) -> None:
        if self.holders:
            self.holders[-1].take_turn(self.word())

    def upload(self) -> None:
        """One of the holders, mostly the last one, sends its turns; sometimes the answer is lost and it sends them again."""
        if not self.holders:
            return
        holder = self.holders[-1] if self.chance.random() < 0.8 else self.chance.choice(self.holders)
        bodies = holder.chain[holder.stored :]
        stopped = self.word() if self.chance.random() < 0.05 else ""
        header = TurnsHeader(lease=self.ref(holder), kept=holder.stored, resumed=holder.resumed, stopped=stopped)
        for _ in range(1 + (self.chance.random() < 0.2)):
            if not self.report(header, bodies):
                return
        holder.stored, holder.resumed = len(holder.chain), None

    def report(self, header: TurnsHeader, bodies: list[bytes]) -> bool:
        def change(tx: Transaction) -> None:
            for record, event in turns_report(TurnsUpload(header, bodies), "u", 2.0)(tx):
                RecordChanges().step(tx, record, event)

        before = self.record()
        valid = before.leased and before.fence == header.lease.fence
        try:
            stored = self.write(change)
        except Fenced:
            assert not valid
            self.seen["fenced"] += 1
            return False
        assert valid
        if stored and before.stage is not Stage.EVAL:
            self.turns = [*self.turns[: header.kept], *bodies]
            if self.snapshot > header.kept:
                self.snapshot = 0
            self.seen["resumed"] += header.resumed is not None
            self.told += [header.stopped] if header.stopped not in ("", *self.told[-1:]) else []
        return stored

    def take_snapshot(self) -> None:
        """A holder uploads a snapshot after one of its last turns, whether that turn is stored or not."""
        if not self.holders or not self.holders[-1].chain:
            return
        holder = self.holders[-1] if self.chance.random() < 0.8 else self.chance.choice(self.holders)
        if not holder.chain or holder.resumed is not None:
            return
        turn = self.chance.randint(1, len(holder.chain))
        archive = holder.chain[turn - 1] * 3
        header = SnapshotHeader(lease=self.ref(holder), turn=turn, resume=True)
        self.archives[hashlib.sha256(archive).hexdigest()] = holder.chain[turn - 1]
        record = self.record()
        try:
            stored = self.write(lambda tx: put_resume_snapshot(tx, RecordChanges(), header, "u", archive, 3.0))
        except Fenced:
            assert not record.leased or record.fence != holder.fence or record.stage is Stage.EVAL
            return
        except Invalid:
            assert turn > record.saved_turns
            self.seen["too early"] += 1
            return
        if stored:
            self.snapshot, self.seen["snapshot"] = turn, self.seen["snapshot"] + 1

    def end_lease(self) -> None:
        record = self.record()
        if not record.leased:
            return
        blob, fence = BlobRef("00000001-0000.pack", 0, 1, "0"), record.fence
        match self.chance.randrange(12):
            case 0:
                event: Event = Outdated(4.0, fence, WEIGHTS_STALE, "too old")
            case 1:
                event = Finished(4.0, fence, Status.INFRA_FAILED, None, FAULT, None, 20, 0)
            case 2 if record.stage is Stage.EVAL:
                event = Finished(4.0, fence, Status.COMPLETED, 1.0, None, None, 20, 5)
            case 2 | 3 if record.stage is not Stage.EVAL:
                event = RunStored(4.0, fence, blob, blob)
            case 4:
                event = Cancelled(4.0) if self.chance.random() < 0.2 else Lost(4.0, fence, "Expired")
            case _:
                event = Lost(4.0, fence, "Expired", handed_back=self.chance.random() < 0.6)
        if self.step(event):
            after = self.record()
            self.seen[type(event).__name__] += 1
            if not after.saved_turns:
                self.turns, self.snapshot = [], 0

    # helpers

    def word(self) -> str:
        self.words += 1
        return str(self.words)

    @staticmethod
    def ref(holder: Holder) -> LeaseRef:
        return LeaseRef(namespace="default", id="r", fence=holder.fence, stage=Stage.RUN)

    def check(self) -> None:
        record, tx = self.record(), Transaction(WriteUnit(self.db, self.packs))
        state, stored = tx.saved_turns(record)
        assert stored == self.turns
        assert record.saved_turns == len(stored)
        history = history_of(record)
        told = [one.message for one in history.entries if one.event == HistoryEvent.SAVING_STOPPED]
        assert told == self.told or (history.dropped and set(told) < set(self.told))
        assert (state.snapshot.about.turn if state.snapshot is not None else 0) == self.snapshot
        sizes = (sum(map(len, stored)), state.snapshot.about.size if state.snapshot is not None else 0)
        assert tx.resume_totals(record.pool_key) == sizes
        (states,) = self.db.execute("SELECT count(*) FROM resume_states").fetchone()
        assert states == (len(stored) > 0)
        if record.status.terminal or record.stage is Stage.EVAL:
            assert not stored
            assert tx.resume_state(record).snapshot is None


@pytest.fixture
def database() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    tables.prepare(db)
    return db


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_histories_of_faults_never_mix_two_states(database: sqlite3.Connection, tmp_path: Path, count: int) -> None:
    seen, first = Counter[str](), 0 if count == 200 else random.randrange(1 << 30)
    for seed in range(first, first + count):
        for name in ("rollouts", "requests", "saved_turns", "resume_states", "resume_totals"):
            database.execute(f"DELETE FROM {name}")
        site = Site(database, PackWriter(tmp_path, 1), random.Random(seed))
        Transaction(WriteUnit(database, site.packs)).put(rollout("r"))
        acts = [site.grant, site.grant, site.work, site.work, site.work, site.upload, site.upload, site.take_snapshot]
        for _ in range(60):
            site.chance.choice([*acts, site.end_lease])()
            try:
                site.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
        seen += site.seen
    assert set(seen) >= {"crash", "fenced", "resumed", "too early", "snapshot", "Lost", "RunStored", "Outdated"}, seen


def leased(database: sqlite3.Connection, tmp_path: Path) -> Site:
    site = Site(database, PackWriter(tmp_path, 1), random.Random(0))
    Transaction(WriteUnit(database, site.packs)).put(rollout("r"))
    site.chance = random.Random(5)
    while not site.holders:
        site.grant()
    return site


def test_a_rollout_and_a_pool_have_limits(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = leased(database, tmp_path)
    put = partial(site.report, TurnsHeader(lease=site.ref(site.holders[0]), kept=0))
    monkeypatch.setattr(saved_turns, "MAX_TURN_BYTES", 100)
    with pytest.raises(TooLarge, match="of one rollout may have at most 100 bytes"):
        put([b"1" * 101])
    monkeypatch.setattr(saved_turns, "MAX_POOL_TURN_BYTES", 90)
    with pytest.raises(TooLarge, match="of pool 'p' have more than 90 bytes"):
        put([b"1" * 91])
    with pytest.raises(Invalid, match="has only 0 saved turns; 1 were to be kept"):
        site.report(TurnsHeader(lease=site.ref(site.holders[0]), kept=1), [])
    site.check()


def test_what_is_no_upload_of_turns_is_refused() -> None:
    head = TurnsHeader(lease=LeaseRef(namespace="default", id="r", fence=1), kept=0).model_dump_json().encode() + b"\n"
    body = zstandard.compress(b"{}")
    assert split_turns(sealed(head + framed(body))).bodies == [body]
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    for wrong in (b"", b"{}\n", head + b"1", head + framed(b"no zstd"), head + framed(unsized)):
        with pytest.raises(Invalid):
            split_turns(sealed(wrong))
    upload = sealed(head + framed(body))
    for place in range(len(upload)):
        with pytest.raises(Invalid, match="damaged on its way"):
            split_turns(upload[:place] + bytes([upload[place] ^ 1]) + upload[place + 1 :])
