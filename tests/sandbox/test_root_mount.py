"""The writable root of sandboxes by the kernel, and by fuse-overlayfs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.sandbox.base import Runtime, SandboxSpec
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT
from rollyard.sandbox.root_mount import RootMount, find_root_mount
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.images.test_local_files import LayoutMaker
from tests.sandbox.conftest import SMALL
from tests.support.debian_packages import debian_program
from tests.support.image_registry import gz, tar
from tests.support.small_roots import busybox_root

ROOT = Path(__file__).parents[2]
COMMAND = """
rm -r /repo/build && mv /repo/dir /repo/dir2 && ls -1 /repo /repo/dir2 && cat /repo/dir2/f && id -u
dd if=/dev/zero of=/big bs=1M count=60 2> /dev/null; dd if=/dev/zero of=/more bs=1M count=60 2>&1 | grep -c 'No space'
rm /big /more
"""
FILES = [("repo/build/deep/f", b"low"), ("repo/dir/f", b"low"), ("repo/dir/old", b"low")]
WITH_FUSE = """
import asyncio, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.sandbox_factory import SandboxFactory

async def main(name, program, cache, image, command):
    runtime = find_runtime(name)
    runtime = replace(runtime, mount=replace(runtime.mount, fuse=program))
    spec = SandboxSpec(parse_image(image), Limits(1, 1 << 30, 64 << 20))
    async with SandboxFactory(runtime, cache=Path(cache)) as factory, await factory.start(spec) as sandbox:
        assert len(sandbox.image.image.layers) == 3
        print((await sandbox.bash(command, 20)).output, end="")
        with await sandbox.snapshot() as saved:
            print(saved.files)

asyncio.run(main(*sys.argv[1:]))
while subprocess.run(["pgrep", "fuse-overlayfs"], stdout=subprocess.DEVNULL).returncode == 0:
    time.sleep(0.01)
"""


def test_this_machine_mounts_by_its_kernel() -> None:
    assert find_root_mount(node_cache(), LAUNCH_ENVIRONMENT) == RootMount(node_cache() / "scratch-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can let other users open /dev/fuse")
def test_folders_of_a_layered_image_are_removed_with_fuse_overlayfs(runtime: Runtime, open_folder: Path) -> None:
    program = debian_program("fuse-overlayfs", "usr/bin/fuse-overlayfs")
    root, device, cache = busybox_root(open_folder / "root"), open_folder / "fuse", open_folder / "cache"
    with tarfile.open(open_folder / "root.tar", "w") as archive:
        archive.add(root, ".")
    cache.mkdir(mode=0o755)
    (cache / own_python(node_cache()).name).symlink_to(own_python(node_cache()))
    removed = gz(tar(("repo/dir/.wh.old", b""), ("repo/dir/f", b"new\n")))
    image = f"oci:{open_folder / 'layout'}:v1"
    LayoutMaker(open_folder / "layout").image(
        "v1", gz((open_folder / "root.tar").read_bytes()), gz(tar(*FILES)), removed
    )
    # Most systems have a /dev/fuse that everybody can open.
    os.mknod(device, 0o020666, os.makedev(10, 229))
    device.chmod(0o666)
    python = shlex.join([sys.executable, "-c", WITH_FUSE, runtime.name, str(program), str(cache), image, COMMAND])
    own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*own, "sh", "-c", f"mount --bind {device} /dev/fuse; {python}; exit $?"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/repo:\ndir2\n\n/repo/dir2:\nf\nnew\n0\n1\n1\n"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_fuse_overlayfs_that_does_not_mount_is_named(bubblewrap: Bubblewrap) -> None:
    broken = replace(bubblewrap, mount=replace(bubblewrap.mount, fuse="/bin/false"))
    async with SandboxFactory(broken) as sandboxes:
        with pytest.raises(SandboxStartFailed, match="/bin/false: it mounts nothing"):
            await sandboxes.start(SandboxSpec(None, SMALL))
