"""The snapshot with which EVAL begins, where it is larger than the server takes, and where the node cannot write it."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

from rollyard.core.errors import NodeFault, SandboxBroken
from rollyard.kinds.rollout import AgentSpec, Stage
from rollyard.node import run_snapshots
from rollyard.node.eval_files import EvalFiles
from rollyard.node.run_snapshots import RunSnapshots
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.wire.node import LeaseRef, SnapshotHeader

REF = LeaseRef(namespace="default", id="r", fence=1, stage=Stage.RUN)
SPEC = SandboxSpec(None, Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=160 << 20))
NOISE = "dd if=/dev/urandom of=noise bs=1M count=70 status=none && sha256sum noise"


class Uploads:
    """The server's side: what arrived."""

    def __init__(self) -> None:
        self.arrived: list[tuple[SnapshotHeader, int]] = []

    async def sandbox_snapshot(self, header: SnapshotHeader, archive: SandboxSnapshot | None) -> None:
        self.arrived.append((header, archive.size if archive is not None else 0))


@contextlib.asynccontextmanager
async def noisy() -> AsyncIterator[tuple[SandboxFactory, Sandbox, str]]:
    """A sandbox with 70 MB that no compression makes smaller, and their digest."""
    async with SandboxFactory(find_runtime("bubblewrap")) as sandboxes, await sandboxes.start(SPEC) as sandbox:
        yield sandboxes, sandbox, (await sandbox.bash(NOISE, 60)).output


@contextlib.contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Let this process write no longer files: the kernel refuses, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def taken(sandbox: Sandbox, files: EvalFiles) -> list[tuple[SnapshotHeader, int]]:
    uploads = Uploads()
    async with RunSnapshots(sandbox, cast(Any, uploads), REF, AgentSpec(), files) as snapshots:
        await snapshots.run_ended(1)
        await snapshots.finish()
    return uploads.arrived


async def test_eval_begins_with_more_than_the_server_takes() -> None:
    """70 MB of noise beside a right solution ended a rollout without a reward."""
    files = EvalFiles()
    async with noisy() as (sandboxes, sandbox, digest):
        ((header, size),) = await taken(sandbox, files)
        assert size == 0
        assert header.error is not None
        assert "the server takes at most 67108864; only this node has it" in header.error
        async with await sandboxes.start(SPEC) as fresh:
            await files.restore(fresh, cast(Any, None), REF)
            assert (await fresh.bash("sha256sum noise", 60)).output == digest
    files.close()


async def test_a_node_that_cannot_write_the_snapshot_is_at_fault() -> None:
    async with noisy() as (_, sandbox, _):
        with longest_file(1 << 20), pytest.raises(NodeFault, match="the node agent cannot write: File too large"):
            await taken(sandbox, EvalFiles())


async def test_an_agent_whose_files_fit_into_no_archive_has_broken_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_snapshots, "EVAL_ARCHIVES", 1 / 4)
    async with noisy() as (_, sandbox, _):
        with pytest.raises(SandboxBroken, match="the files that the sandbox changed do not fit into a snapshot"):
            await taken(sandbox, EvalFiles())
