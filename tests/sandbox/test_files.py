"""Files in and out of a sandbox, and its editor, through the whole way."""

from __future__ import annotations

import errno
import os

import pytest

from rollyard.sandbox.base import Runtime
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return find_runtime("bubblewrap")


async def test_bytes_come_back_as_they_went(sandbox: Sandbox) -> None:
    data = os.urandom(5_000_000)
    await sandbox.write_file("deep/er/data.bin", data, mode=0o600)
    assert await sandbox.read_file("/workspace/deep/er/data.bin", len(data)) == data
    assert (await sandbox.bash("stat -c '%a %s' deep/er/data.bin", 10)).output == "600 5000000\n"


async def test_a_script_that_was_written_runs(sandbox: Sandbox) -> None:
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.bash("./run.sh", 10)).output == "ran\n"


async def test_what_cannot_be_read_is_an_os_error(sandbox: Sandbox) -> None:
    await sandbox.bash("mkfifo pipe; mkdir -p folder; touch locked; chmod 0 locked; echo 12345 > five", 10)
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("nowhere", 10)
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("folder", 10)
    with pytest.raises(PermissionError):
        await sandbox.read_file("locked", 10)
    with pytest.raises(OSError, match="longer than 5 bytes") as too_long:
        await sandbox.read_file("five", 5)
    assert too_long.value.errno == errno.EFBIG
    for special in ("pipe", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            await sandbox.read_file(special, 10)


async def test_what_cannot_be_written_is_an_os_error(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        await sandbox.write_file("/usr/x", b"")
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("/workspace", b"")


@pytest.mark.parametrize("name", ["nul\0", "half \ud800"])
async def test_a_name_that_no_file_can_have_is_an_os_error(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        await sandbox.read_file(name, 5)
    with pytest.raises(OSError, match="no file can have this name"):
        await sandbox.write_file(name, b"")


async def test_the_editor_sees_what_bash_wrote(sandbox: Sandbox) -> None:
    await sandbox.bash("printf 'one\\ntwo\\n' > notes", 10)
    assert (await sandbox.edit("view", "notes")).output == "     1\tone\n     2\ttwo"
    result = await sandbox.edit("str_replace", "notes", old_str="two", new_str="2")
    assert result.ok
    assert (await sandbox.bash("cat notes", 10)).output == "one\n2\n"


async def test_a_file_of_one_long_line_is_whole(sandbox: Sandbox) -> None:
    line = "x" * 200_000
    assert (await sandbox.edit("create", "long", file_text=line)).ok
    assert (await sandbox.bash("wc -l -c < long", 10)).output.split() == ["0", "200000"]
    assert (await sandbox.edit("view", "long")).output.endswith(line)
    assert (await sandbox.edit("str_replace", "long", old_str=line, new_str="y")).ok
    assert (await sandbox.bash("cat long; rm long", 10)).output == "y"


async def test_a_full_disk_leaves_a_file_as_it_was(sandbox: Sandbox) -> None:
    await sandbox.bash("echo old > kept; seq 100 > sparse; truncate -s 1M sparse; cp kept copy; cp sparse before", 10)
    await sandbox.bash("head -c 1G /dev/zero >a; while echo >>a; do :; done 2>/dev/null; ls >b", 30)
    long = "x" * 300_000
    for result in (
        await sandbox.edit("create", "kept", file_text=long),
        await sandbox.edit("str_replace", "kept", old_str="old", new_str=long),
        await sandbox.edit("create", "sparse", file_text=long),
        await sandbox.edit("create", "new", file_text=long),
    ):
        assert (result.ok, result.output.endswith(": No space left on device.")) == (False, True)
    with pytest.raises(OSError, match="No space left"):
        await sandbox.write_file("kept", b"x" * 300_000)
    found = await sandbox.bash("cmp kept copy; cmp sparse before; ls -d new; rm a b", 10)
    assert found.output == "ls: cannot access 'new': No such file or directory\n"
    assert (await sandbox.edit("create", "kept", file_text="short")).ok
    assert (await sandbox.bash("cat kept", 10)).output == "short"


async def test_the_view_of_a_file_with_millions_of_lines_is_bounded(sandbox: Sandbox) -> None:
    await sandbox.bash("yes | head -c 8M > lines", 10)
    result = await sandbox.edit("view", "lines")
    assert result.output.startswith("     1\ty\n")
    assert result.output.endswith("4194304\ty")
    assert len(result.output) < 2 << 20
    memory = (await sandbox.bash("grep VmHWM /proc/1/status", 10)).output
    assert int(memory.split()[1]) < 150_000  # in kB; the sandbox agent's memory has no limit
    assert (await sandbox.edit("insert", "lines", insert_line=3, new_str="n")).output.splitlines()[4] == "     4\tn"


async def test_wrong_arguments_are_answers(sandbox: Sandbox) -> None:
    for command, path, arguments in (
        ("delete", "notes", {}),
        ("create", "notes", {}),
        ("view", "notes", {"view_range": "1-2"}),
        ("view", "/nowhere", {}),
        ("create", "/usr/x", {"file_text": "x"}),
        ("create", "bad", {"file_text": "\ud800"}),
        ("view", "", {}),
        ("insert", "notes", {"insert_line": True, "new_str": "x"}),
    ):
        result = await sandbox.edit(command, path, **arguments)
        assert not result.ok
        assert result.output.startswith("Error: ")
