"""A task that owns the folders above the sandbox agent's own files closes them, or takes them away; or somebody outside
takes their mount away."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxBroken, SandboxSilent
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.sandbox.conftest import SMALL
from tests.support.sandbox_processes import agent, whose_command_has
from tests.support.small_roots import busybox_root
from tests.support.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def own_root(open_folder: Path) -> Path:
    """An image whose files the sandboxes' account owns, as it does those of a registry's images."""
    root, account = busybox_root(open_folder / "root"), sandbox_account()
    if account.credentials:
        for path in (root, *root.rglob("*")):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return root


@pytest.mark.parametrize("closed", ["/", "/opt"])
async def test_a_task_that_closes_the_folders_above_the_sandbox_agent_keeps_its_tools(
    sandboxes: SandboxFactory, own_root: Path, closed: str
) -> None:
    async with await sandboxes.start(SandboxSpec(parse_image(str(own_root)), SMALL)) as closing:
        await closing.bash(f"chmod 000 {closed}", 1)
        assert (await closing.edit("create", "/workspace/a", file_text="text")).ok
        assert await closing.read_file("/workspace/a", 99) == b"text"
        assert (await closing.bash("echo lives", 60)).output == "lives\n"
        with await closing.snapshot() as snapshot:
            assert snapshot.files


async def test_a_task_that_takes_the_sandbox_agents_files_away_has_broken_its_sandbox(
    sandboxes: SandboxFactory, own_root: Path
) -> None:
    async with await sandboxes.start(SandboxSpec(parse_image(str(own_root)), SMALL)) as moved:
        if (await moved.bash("mv /opt /gone", 60)).exit_code != 0:
            pytest.skip("this runtime's /opt cannot be renamed")
        with pytest.raises(SandboxBroken, match="the agent took away the folders"):
            await moved.edit("create", "/workspace/a", file_text="text")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the mounts of a sandbox")
@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("umount", "--lazy", "/opt/rollyard"), "IPython did not start"),
        (("mount", "-o", "remount,ro", "/"), "became read-only"),
    ],
)
async def test_mounts_that_somebody_outside_takes_away_are_not_the_tasks_doing(
    sandboxes: SandboxFactory, spec: SandboxSpec, command: tuple[str, ...], found: str
) -> None:
    async with await sandboxes.start(spec) as hurt:
        program = asyncio.create_task(hurt.bash("exec -a waits sleep 600", 600))
        pid = await until(lambda: _process_one_of("waits"))
        subprocess.run(["nsenter", "--target", str(pid), "--mount", "--pid", "--root", *command], check=True)
        program.cancel()
        try:
            await hurt.bash("true", 60)
            if not hurt.node_fault:
                await hurt.ipython("1", 60)
            said = hurt.node_fault
        except SandboxSilent as error:
            said = str(error)
        assert found in said


def _process_one_of(name: str) -> int | None:
    """Return process 1 of the sandbox in which a program has this name."""
    seen = whose_command_has(name, "600")
    return agent(*seen) if seen is not None else None
