"""Images: folders and .sif files of any content, and what is said of those that are not there."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from rollyard.core.errors import ImageNotFound, ImageUnavailable, SandboxError
from rollyard.host.find_apptainer import apptainer_programs
from rollyard.host.node_cache import node_cache
from rollyard.host.sandbox_account import sandbox_account
from rollyard.images.named_image import named_image
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.images import Images
from rollyard.sandbox.sandbox_factory import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)


async def test_an_image_with_nothing_in_it(sandboxes: SandboxFactory, empty_image: Path) -> None:
    async with await sandboxes.start(SandboxSpec(parse_image(str(empty_image)), LIMITS)) as sandbox:
        shell = await sandbox.bash('cat() { echo "$(<$1)"; }; cat /etc/mark; echo "$0"; pwd; echo x > f; cat f', 10)
        assert shell.output == "from the image\nbash\n/workspace\nx\n"
        for folder in ("/tmp", "/var/tmp", "/dev/shm", "/home/agent"):
            assert (await sandbox.bash(f"echo y > {folder}/g && cat {folder}/g", 10)).output == "y\n"
        assert (await sandbox.ipython("1+1", 10)).output == "2\n"
        assert (await sandbox.edit("view", "/etc/mark")).output == "     1\tfrom the image"
        assert await sandbox.read_file("f", 10) == b"x\n"


async def test_no_task_gets_the_home_folder_or_the_whole_node_as_its_image(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = open_folder / "home/user"
    (home / "bin").mkdir(parents=True)
    (home / "image/bin").mkdir(parents=True)
    (open_folder / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    images = Images(node_cache())
    for name in ("/", str(home), str(home.parent), str(open_folder / "link"), str(node_cache())):
        with pytest.raises(ImageNotFound, match="where the job's account keeps files of its own"):
            images.folder_root(parse_image(name))
    assert images.folder_root(parse_image(str(home / "image"))).layers == [home / "image"]


async def test_changes_to_a_folder_image_stay_in_the_sandbox(sandboxes: SandboxFactory, empty_image: Path) -> None:
    account = sandbox_account()
    for path in (empty_image, empty_image / "etc", empty_image / "etc" / "mark"):
        os.chown(path, account.uid, account.gid)
    spec = SandboxSpec(parse_image(str(empty_image)), LIMITS)
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
    async with await sandboxes.start(SandboxSpec(parse_image(str(empty_image)), LIMITS)) as sandbox:
        assert await sandbox.read_file("shipped", 100) == b"shipped\n"


async def test_the_first_sandbox_says_what_it_waits_for(runtime: Runtime, empty_image: Path) -> None:
    async with SandboxFactory(runtime) as here:
        starting = asyncio.ensure_future(here.start(SandboxSpec(parse_image(str(empty_image)), LIMITS)))
        await asyncio.sleep(0)
        assert here.preparing.startswith("copies Python and IPython for the inside of sandboxes to ")
        async with await starting:
            assert here.preparing == ""


async def test_a_relative_name_is_looked_up_in_the_image_folder(runtime: Runtime, empty_image: Path) -> None:
    spec = SandboxSpec(named_image("empty", empty_image.parent), LIMITS)
    async with SandboxFactory(runtime) as here, await here.start(spec) as sandbox:
        assert await sandbox.read_file("/etc/mark", 100) == b"from the image\n"


async def test_a_sif_is_unpacked_once(runtime: Runtime, empty_image: Path, open_folder: Path) -> None:
    sif = open_folder / "small.sif"
    apptainer = next((program for _, program in apptainer_programs(node_cache())), None)
    if apptainer is None:
        pytest.skip("no Apptainer to make a .sif file with")
    subprocess.run([apptainer, "build", sif, empty_image], check=True, capture_output=True)
    sif.chmod(0o644)
    cache = open_folder / "cache"
    cache.mkdir()
    own = own_python(node_cache())
    (cache / own.name).symlink_to(own)  # made once for all tests
    async with SandboxFactory(runtime, cache=cache) as sandboxes:
        for _ in range(2):
            async with await sandboxes.start(SandboxSpec(parse_image(str(sif)), LIMITS)) as sandbox:
                assert await sandbox.read_file("/etc/mark", 100) == b"from the image\n"
                await sandbox.write_file("/etc/mark", b"changed\n")
    assert len(list((cache / "image-cache/entries").iterdir())) == 1


@pytest.mark.parametrize(
    ("image", "error"),
    [("/nowhere/at/all", ImageUnavailable), ("library://debian", ImageNotFound), ("/" + "x" * 1_000, ImageUnavailable)],
)
async def test_a_missing_image_is_named(sandboxes: SandboxFactory, image: str, error: type[SandboxError]) -> None:
    with pytest.raises(error, match=r"the path of a \.sif .* file, or of a folder ") as caught:
        await sandboxes.start(SandboxSpec(named_image(image), LIMITS))
    assert image in str(caught.value)


async def test_a_missing_file_is_named(sandboxes: SandboxFactory) -> None:
    with pytest.raises(ImageUnavailable, match=r"there is no file /.*/nowhere\.sif"):
        await sandboxes.start(SandboxSpec(named_image("nowhere.sif"), LIMITS))


async def test_what_is_no_image_is_named(sandboxes: SandboxFactory, open_folder: Path) -> None:
    (open_folder / "file.tar").write_text("x")
    with pytest.raises(ImageUnavailable, match=r"is not a folder, and its name ends like none"):
        await sandboxes.start(SandboxSpec(parse_image(str(open_folder / "file.tar")), LIMITS))
    with pytest.raises(ImageUnavailable, match="not a root file system"):
        await sandboxes.start(SandboxSpec(parse_image(str(open_folder)), LIMITS))
