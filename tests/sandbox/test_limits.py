"""A task that goes beyond its limits: a result for it, and neither harm to the host nor the end of the sandbox."""

from __future__ import annotations

import errno

import pytest

from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.sandbox.conftest import SMALL

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_memory_hog_in_ipython(sandbox: Sandbox) -> None:
    result = await sandbox.ipython("hog = bytearray(4 << 30)", 30)
    assert result.error
    assert not result.restarted
    assert result.output.endswith("MemoryError\n")


async def test_a_memory_hog_in_bash(sandbox: Sandbox) -> None:
    result = await sandbox.bash("python3 -c 'bytearray(4 << 30)'", 30)
    assert result.exit_code == 1
    assert "MemoryError" in result.output


async def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    result = await sandbox.bash("ulimit -v unlimited; ulimit -u 100000", 10)
    assert "cannot modify limit" in result.output


async def test_the_kernel_ends_the_processes_of_a_task_first(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("cat /proc/self/oom_score_adj", 10)).output == "1000\n"
    assert (await sandbox.ipython("int(open('/proc/self/oom_score_adj').read())", 60)).output == "1000\n"


async def test_a_file_that_is_too_long(sandbox: Sandbox) -> None:
    result = await sandbox.bash(
        "head -c 200M /dev/zero > /workspace/long; stat -c %s /workspace/long; rm /workspace/long", 30
    )
    assert int(result.output.split()[-1]) <= 64 << 20


async def test_a_disk_that_is_full(sandbox: Sandbox) -> None:
    command = "cd /workspace; for i in 1 2 3 4; do head -c 30M /dev/zero > f$i; done; du -sm . | cut -f1; rm f?"
    result = await sandbox.bash(command, 30)
    assert "No space left on device" in result.output
    assert int(result.output.split()[-1]) <= 64


async def test_one_limit_holds_for_the_files_of_all_folders(sandbox: Sandbox) -> None:
    folders = "/tmp /var/tmp /workspace /home/agent /dev/shm"
    written = await sandbox.bash(f"for d in {folders}; do head -c 30M /dev/zero > $d/x; done", 30)
    assert "No space left on device" in written.output
    sizes = await sandbox.bash(f"for d in {folders}; do stat -c %s $d/x && rm $d/x; done", 30)
    assert 30 << 20 <= sum(map(int, sizes.output.split())) <= 64 << 20


async def test_more_files_than_a_sandbox_may_have(sandbox: Sandbox) -> None:
    await until_mounts_are_limited(sandbox)
    result = await sandbox.bash("cd /workspace; mkdir many; for i in $(seq 20000); do : > many/$i || break; done", 60)
    assert "No space left on device" in result.output
    count = await sandbox.bash("ls -U many | wc -l; rm -r many; echo works > after; cat after", 60)
    assert count.output.endswith("\nworks\n")
    assert int(count.output.split()[0]) <= SMALL.files == 16384


async def test_no_process_opens_more_files_than_its_limit(sandbox: Sandbox) -> None:
    code = "held = []\ntry:\n    while True: held.append(open('/dev/null'))\nexcept OSError as e: print(e.errno)"
    assert (await sandbox.bash(f'python3 -c "{code}"; ulimit -Hn', 60)).output == f"{errno.EMFILE}\n1024\n"


async def until_mounts_are_limited(sandbox: Sandbox) -> None:
    """Wait until the memory guard has set the limits that Apptainer cannot set."""
    mounts = ""
    while "max=64" not in mounts or "nr_inodes=16384" not in mounts:
        mounts = (await sandbox.bash("cat /proc/self/mountinfo", 60)).output


async def test_no_sandbox_takes_all_pseudo_terminals(sandbox: Sandbox) -> None:
    await until_mounts_are_limited(sandbox)
    code = "import itertools, os\ntry:\n    for n in itertools.count(): os.openpty()\nexcept OSError as e: print(n, e.errno)"
    assert (await sandbox.ipython(code, 60)).output in (f"{n} {errno.ENOSPC}\n" for n in range(50, 65))


async def test_a_fork_bomb(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.prepare(["bash", "ipython"])
        result = await sandbox.bash("f() { f | f & }; f; while :; do /bin/true; done", 0.5)
        assert result.timed_out
        count = await sandbox.ipython("import os; sum(name.isdigit() for name in os.listdir('/proc'))", 60)
        assert int(count.output) <= 64 + 8
        assert (await sandbox.edit("create", "/tmp/after", file_text="works")).ok
        assert sandbox.alive


async def test_a_fork_bomb_in_the_background_leaves_the_tools_usable(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.bash("f() { f | f & }; f 2>/dev/null", 60)
        assert "still here\n" in (await sandbox.bash("echo still here 2>/dev/null", 60)).output
        assert (await sandbox.ipython("1+1", 60)).output == "2\n"
