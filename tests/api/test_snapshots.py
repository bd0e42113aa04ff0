"""Snapshots over the real API: stored under a lease, listed, read, and deleted with the rollout."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
import zstandard

from rollyard.api import snapshots
from rollyard.core.errors import Fenced, Invalid, NotFound, TooLarge
from rollyard.host.node_cache import node_cache
from rollyard.kinds.rollout import AgentSpec, Stage
from rollyard.node import run_snapshots
from rollyard.node.run_snapshots import RunSnapshots
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.server.rollouts import lease_reports
from rollyard.trajectory.frames import sealed
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.node import LeaseRef, SnapshotHeader, TurnsHeader
from tests.api.test_columns import RUN, a_client, leased, node_agent
from tests.support.outside_api import Serve


def header(ref: LeaseRef, turn: int, **more: object) -> SnapshotHeader:
    return SnapshotHeader.model_validate({"lease": ref, "turn": turn, **more})


async def test_what_is_stored_is_what_is_read(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        assert await client.snapshots("r") == []
        with pytest.raises(NotFound, match=r"has no snapshot after turn 1; `agent\.snapshots` of its request decides"):
            await client.snapshot("r", 1)
        about = {
            "archive_bytes": 900,
            "files": 3,
            "left_out": ["/tmp/socket"],
            "left_out_count": 12,
            "image": "sha256:1",
        }
        await uploads.snapshot(header(ref, 1, **about), b"archive\n\n1")
        await uploads.snapshot(header(ref, 3, **about), b"archive 3")
        await uploads.snapshot(header(ref, 3, **about), b"archive three")  # repeated after a lost answer
        await uploads.snapshot(header(ref, 2, error="it is too large"), b"")
        one, two, three = await client.snapshots("r")
        assert (one.turn, one.size, one.archive_bytes, one.files, one.image) == (1, 10, 900, 3, "sha256:1")
        assert (one.left_out, one.left_out_count, one.error) == (["/tmp/socket"], 12, None)
        assert (two.turn, two.size, two.error) == (2, 0, "it is too large")
        assert await client.snapshot("r", 1) == b"archive\n\n1"
        assert await client.snapshot("r", 3) == b"archive three"
        with pytest.raises(NotFound, match="no snapshot after turn 2: it is too large"):
            await client.snapshot("r", 2)
        with pytest.raises(NotFound, match="there are snapshots after turns 1, 3"):
            await client.snapshot("r", 4)
        assert three.turn == 3
        assert await uploads.run_snapshot(ref) == (three, b"archive three")
    async with serving() as api, a_client(api) as client:
        assert await client.snapshots("r") == [one, two, three]
        assert await client.snapshot("r", 1) == b"archive\n\n1"


async def test_only_the_present_lease_stores_one_and_only_during_run(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        with pytest.raises(Fenced):
            await uploads.snapshot(header(ref.model_copy(update={"fence": 2}), 1), b"late")
        with pytest.raises(Fenced):
            await uploads.snapshot(header(ref.model_copy(update={"id": "another"}), 1), b"late")
        await uploads.snapshot(header(ref, 1), b"archive")
        await uploads.run(ref, RUN)
        with pytest.raises(Fenced, match="at EVAL"):
            await uploads.snapshot(header(ref.model_copy(update={"stage": Stage.EVAL}), 2), b"late")
        assert [one.turn for one in await client.snapshots("r")] == [1]


async def test_a_new_attempt_has_none_of_the_earlier_ones(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        await uploads.snapshot(header(ref, 1), b"first")
        await uploads.snapshot(header(ref, 2), b"second")
        record = await api.parts.rollouts.get("default", "r")
        await api.store.rollouts.transact(lambda tx: tx.put(replace(record, attempt=2, fence=2)))
        assert await client.snapshots("r") == []
        await uploads.snapshot(header(ref.model_copy(update={"fence": 2}), 1), b"again")
        assert [one.turn for one in await client.snapshots("r")] == [1]
        assert await client.snapshot("r", 1) == b"again"


async def test_a_client_that_does_not_read_keeps_no_snapshot_in_memory(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SEND_SECONDS", 1.0)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 24 << 20)
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        body = BytesIO(sealed(header(ref, 2).model_dump_json().encode()) + b"\n" + bytes(24 << 20))
        headers = {"Authorization": "Bearer " + api.parts.signer.issue(Role.NODE, "u")}
        async with api.http.put(f"{api.url}/v1/node/snapshot", data=body, headers=headers) as answer:
            assert answer.status == 204
        await uploads.snapshot(header(ref, 1), b"small")
        url = f"{api.url}/v1/rollouts/r/snapshots/2"
        of_node_agents = f"{api.url}/v1/node/run/snapshot?namespace=default&id=r&fence={ref.fence}"
        stalled = [await api.http.get(of_node_agents, headers=headers) for _ in range(2)]
        stalled += [await api.http.get(url) for _ in range(2)]
        assert await client.snapshot("r", 2) == bytes(24 << 20)  # waits until the first connection is closed
        assert (await uploads.run_snapshot(ref))[1] == bytes(24 << 20)
        with pytest.raises(aiohttp.ClientError):
            await stalled[0].read()
        for answer in stalled:
            answer.close()


async def test_limits(serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_reports, "MAX_SNAPSHOTS_BYTES", 25)
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        await uploads.snapshot(header(ref, 1), b"x" * 20)
        await uploads.snapshot(header(ref, 1), b"y" * 20)
        with pytest.raises(
            TooLarge, match="at most 25 bytes together, and those of earlier turns have 20; this one has 6"
        ):
            await uploads.snapshot(header(ref, 2), b"x" * 6)
        assert await client.snapshot("r", 1) == b"y" * 20
        with pytest.raises(Invalid, match="either an archive or an error"):
            await uploads.snapshot(header(ref, 2, error="why"), b"x")


async def test_a_damaged_snapshot_is_not_found_by_the_next_holder(serving: Serve, tmp_path: Path) -> None:
    """It would wait for the disk else, for as long as INIT may take."""
    async with serving() as api, node_agent(api, tmp_path) as uploads:
        ref = await leased(api, "r")
        await uploads.turns(TurnsHeader(lease=ref, kept=0), [zstandard.compress(b"{}")])
        await uploads.snapshot(header(ref, 1, resume=True, seconds=0.1), b"archive")
        about, archive = await uploads.turns_snapshot(ref)
        assert (about.turn, archive) == (1, b"archive")
        totals = await api.store.rollouts.all_resume_totals()
        assert [snapshots for _, snapshots in totals.values()] == [len(b"archive")]
        (pack,) = (path for path in (tmp_path / "data").rglob("*.pack") if b"archive" in path.read_bytes())
        pack.write_bytes(pack.read_bytes().replace(b"archive", b"archIve"))
        with pytest.raises(NotFound, match="is damaged: its digest does not match"):
            await uploads.turns_snapshot(ref)


async def test_while_the_server_is_away_the_node_keeps_only_some_of_a_run(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_snapshots, "MAX_WAITING_BYTES", 1)

    def kept() -> int:
        names = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # another thread has closed it
                names.append(os.readlink(f"/proc/self/fd/{number}"))
        return sum(name.startswith(f"{node_cache()}/#") for name in names)

    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        here = (tmp_path / "endpoint.json").read_text()
        (tmp_path / "endpoint.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "epoch": 2}))
        factory = SandboxFactory(find_runtime("bubblewrap"))
        spec = SandboxSpec(None, Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64))
        async with (
            factory,
            await factory.start(spec) as sandbox,
            RunSnapshots(sandbox, uploads, ref, AgentSpec(snapshots="every"), None) as run,
        ):
            before = kept()
            for turn in (1, 2, 3):
                await run.turn_ended(turn)
            assert kept() - before == 1
            await run.run_ended(3)
            assert kept() - before == 2
            (tmp_path / "endpoint.json").write_text(json.dumps({**json.loads(here), "epoch": 3}))
            await run.finish()
        found = [(one.turn, one.size > 0, one.error or "") for one in await client.snapshots("r")]
        assert [one[:2] for one in found] == [(1, True), (2, False), (3, True)]
        assert "the server had not taken the ones before" in found[1][2]
