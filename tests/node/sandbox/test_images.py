"""Images: folders and .sif files of any content, and what is said of those that are not there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rollyard.core.errors import ImageNotFound, SandboxStartFailed
from rollyard.core.node_cache import node_cache
from rollyard.core.sandbox_account import sandbox_account
from rollyard.node.sandbox.apptainer import Apptainer
from rollyard.node.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.node.sandbox.bundled_python import own_python
from rollyard.node.sandbox.images import Images
from rollyard.node.sandbox.sandbox import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)


async def test_an_image_with_nothing_in_it(sandboxes: SandboxFactory, empty_image: Path) -> None:
    async with await sandboxes.start(SandboxSpec(str(empty_image), LIMITS)) as sandbox:
        shell = await sandbox.bash('cat() { echo "$(<$1)"; }; cat /etc/mark; echo "$0"; pwd; echo x > f; cat f', 10)
        assert shell.output == "from the image\nbash\n/workspace\nx\n"
        for folder in ("/tmp", "/var/tmp", "/dev/shm", "/home/agent"):
            assert (await sandbox.bash(f"echo y > {folder}/g && cat {folder}/g", 10)).output == "y\n"
        assert (await sandbox.ipython("1+1", 10)).output == "2\n"
        assert (await sandbox.edit("view", "/etc/mark")).output == "     1\tfrom the image"
        assert await sandbox.read_file("f", 10) == b"x\n"


async def test_changes_to_a_folder_image_stay_in_the_sandbox(sandboxes: SandboxFactory, empty_image: Path) -> None:
    account = sandbox_account()
    for path in (empty_image, empty_image / "etc", empty_image / "etc" / "mark"):
        os.chown(path, account.uid, account.gid)
    spec = SandboxSpec(str(empty_image), LIMITS)
    async with await sandboxes.start(spec) as one, await sandboxes.start(spec) as two:
        await one.write_file("/etc/mark", b"changed\n")
        await one.write_file("/new/file", b"new\n")
        assert await one.read_file("/etc/mark", 100) == b"changed\n"
        assert await two.read_file("/etc/mark", 100) == b"from the image\n"
        with pytest.raises(FileNotFoundError):
            await two.read_file("/new/file", 100)
    assert (empty_image / "etc" / "mark").read_text() == "from the image\n"
    assert not (empty_image / "new").exists()


async def test_what_an_image_has_in_the_workspace_is_kept(sandboxes: SandboxFactory, empty_image: Path) -> None:
    (empty_image / "workspace").mkdir()
    (empty_image / "workspace" / "shipped").write_text("shipped\n")
    async with await sandboxes.start(SandboxSpec(str(empty_image), LIMITS)) as sandbox:
        assert await sandbox.read_file("shipped", 100) == b"shipped\n"


async def test_a_relative_name_is_looked_up_in_the_image_folder(runtime: Runtime, empty_image: Path) -> None:
    spec = SandboxSpec("empty", LIMITS)
    async with SandboxFactory(runtime, images=empty_image.parent) as here, await here.start(spec) as sandbox:
        assert await sandbox.read_file("/etc/mark", 100) == b"from the image\n"


async def test_a_sif_is_unpacked_once(runtime: Runtime, empty_image: Path, open_folder: Path) -> None:
    sif = open_folder / "small.sif"
    if not isinstance(runtime, Apptainer):
        sif.write_bytes(b"not read")
        async with SandboxFactory(runtime) as sandboxes:
            with pytest.raises(ImageNotFound, match=r"bubblewrap cannot read.*install Apptainer"):
                await sandboxes.start(SandboxSpec(str(sif), LIMITS))
        return
    subprocess.run([runtime.program, "build", sif, empty_image], check=True, capture_output=True)
    sif.chmod(0o644)
    cache = open_folder / "cache"
    cache.mkdir()
    own = own_python(node_cache())
    (cache / own.name).symlink_to(own)  # made once for all tests
    async with SandboxFactory(runtime, cache=cache) as sandboxes:
        for _ in range(2):
            async with await sandboxes.start(SandboxSpec(str(sif), LIMITS)) as sandbox:
                assert await sandbox.read_file("/etc/mark", 100) == b"from the image\n"
                await sandbox.write_file("/etc/mark", b"changed\n")
    assert len([path for path in (cache / "images").iterdir() if not path.name.startswith(".")]) == 1


@pytest.mark.parametrize("image", ["nowhere.sif", "/nowhere/at/all", "library://debian", "/" + "x" * 5_000])
async def test_a_missing_image_is_named(sandboxes: SandboxFactory, image: str) -> None:
    with pytest.raises(ImageNotFound, match=r"a \.sif file, a folder with a root file system, or null") as caught:
        await sandboxes.start(SandboxSpec(image, LIMITS))
    assert image in str(caught.value)


async def test_what_is_no_image_is_named(sandboxes: SandboxFactory, open_folder: Path) -> None:
    (open_folder / "file.tar").write_text("x")
    with pytest.raises(ImageNotFound, match=r"neither a folder nor a \.sif"):
        await sandboxes.start(SandboxSpec(str(open_folder / "file.tar"), LIMITS))
    with pytest.raises(ImageNotFound, match="not a root file system"):
        await sandboxes.start(SandboxSpec(str(open_folder), LIMITS))


async def test_a_sif_that_takes_too_long_to_unpack_is_a_failed_start(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.node.sandbox.images.UNPACK_SECONDS", 0.2)
    slow, sif, cache = open_folder / "slow", open_folder / "large.sif", open_folder / "cache"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    sif.write_bytes(b"")
    cache.mkdir()
    images = Images(Apptainer(str(slow), cache), cache, open_folder)
    with pytest.raises(SandboxStartFailed, match=r"large\.sif could not be unpacked within 0\.2 s"):
        images.root(str(sif))
