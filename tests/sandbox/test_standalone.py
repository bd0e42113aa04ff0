"""Sandboxes that a program opens for itself, without a server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.sandbox import Limits, open_sandbox
from tests.support.host_processes import descendants
from tests.support.small_roots import busybox_root
from tests.support.until import until

OWN = "bubblewrap"


async def test_a_sandbox_of_an_image_with_its_own_limits_and_variables(open_folder: Path) -> None:
    busybox_root(open_folder / "image")
    limits = Limits(disk_bytes=1 << 20)
    async with open_sandbox(image=str(open_folder / "image"), limits=limits, env={"WHO": "me"}, runtime=OWN) as sandbox:
        said = await sandbox.bash("echo $WHO; head -c 2000000 /dev/zero > big; echo $?")
        assert said.output.split("\n")[0] == "me"
        assert said.output.split("\n")[-2] == "153", "SIGXFSZ: a file is no longer than the limit"


async def test_a_sandbox_begins_with_the_files_of_another_one() -> None:
    async with open_sandbox(runtime=OWN) as first:
        await first.write_file("/workspace/a", b"1")
        with await first.snapshot() as snapshot:
            async with open_sandbox(snapshot=snapshot.file, runtime=OWN) as second:
                assert await second.read_file("/workspace/a", 10) == b"1"


async def test_after_the_block_no_process_is_left() -> None:
    before = _children()
    async with open_sandbox(runtime=OWN) as sandbox:
        await sandbox.bash("setsid sleep 1000 &")
        assert _children() - before
    await until(lambda: _children() <= before)


async def test_what_cannot_be_opened_is_said() -> None:
    with pytest.raises(ValueError, match="no spaces here"):
        async with open_sandbox(allowed_hosts=["no spaces here"], runtime=OWN):
            pass
    with pytest.raises(ImageUnavailable):
        async with open_sandbox(image="/no/such/image", runtime=OWN):
            pass


def _children() -> set[int]:
    return {process.pid for process in descendants(os.getpid())}
