"""Attempts to get out of a sandbox: each must fail, in every runtime."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from rollyard.host.sandbox_account import sandbox_account
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.support.host_processes import descendants, host_processes

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_only_a_loopback_of_its_own(sandbox: Sandbox) -> None:
    assert (
        await sandbox.ipython("import socket; [name for _, name in socket.if_nameindex()]", 10)
    ).output == "['lo']\n"


async def test_no_server_on_the_host_is_reached(sandbox: Sandbox) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    addresses = ["127.0.0.1", "192.0.2.1"]
    try:
        for address in addresses:
            code = f"import socket; socket.create_connection(({address!r}, {port}), timeout=2)"
            result = await sandbox.ipython(code, 10)
            assert result.error
            assert "refused" in result.output or "unreachable" in result.output
    finally:
        server.close()
        await server.wait_closed()


async def test_no_unix_socket_of_the_host_is_reached(sandbox: Sandbox, open_folder: Path) -> None:
    named, abstract = str(open_folder / "socket"), f"\0{open_folder}"
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(named)
        os.chmod(named, 0o777)
        two.bind(abstract)
        for listener, address in ((one, named), (two, abstract)):
            listener.listen()
            code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({address!r})"
            assert (await sandbox.ipython(code, 10)).error


async def test_there_is_no_socket_to_another_sandbox(
    sandboxes: SandboxFactory, sandbox: Sandbox, spec: SandboxSpec
) -> None:
    async with await sandboxes.start(spec) as other:
        await other.bash("echo theirs > /tmp/theirs; echo theirs > /dev/shm/theirs; sleep 1000 &", 10)
        seen = await sandbox.bash(
            "cat /proc/net/unix | wc -l; find /tmp /run /var /dev /home /workspace -type s; ls /tmp/theirs /dev/shm/theirs",
            10,
        )
        assert "theirs\n" not in seen.output.replace("theirs': No such file", "")
        assert (await sandbox.bash("pgrep -c sleep", 10)).output == "0\n"
    assert (await sandbox.bash("find /tmp /run /var /dev /home /workspace -type s", 10)).output == ""


async def test_host_files_are_not_there(sandbox: Sandbox, open_folder: Path) -> None:
    (open_folder / "host-file").write_text("secret")
    home = Path.home()
    places = [
        "/etc/shadow",
        "/etc/ssh",
        str(open_folder),
        str(open_folder / "host-file"),
        str(Path(__file__)),
        "/sys/kernel",
    ]
    for place in places:
        assert (await sandbox.bash(f"test -e {place} && echo there", 10)).output == ""
    listed = await sandbox.bash(
        f"ls -A {home} /home /root /tmp /run /mnt /srv 2>/dev/null | grep -v -e : -e '^$' -e agent", 10
    )
    assert listed.output == ""


async def test_host_processes_are_not_seen(sandbox: Sandbox) -> None:
    inside = (await sandbox.bash("ls /proc | grep -c '^[0-9]'", 10)).output
    assert int(inside) < 12
    mine = os.getpid()
    assert any(process.pid == mine for process in host_processes())
    assert (await sandbox.bash("ps -eo args= | grep -c '[p]ytest'", 10)).output == "0\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo x > /usr/bin/x",
        "echo x > /opt/rollyard/x",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/kernel/hostname",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /usr",
        "chroot / true",
        "mknod /tmp/sda b 8 0",
        "nsenter -t 1 -m true",
        "umount /usr",
        "hostname x",
        "cat /proc/1/mem",
        "cat /proc/1/environ",
        "ls /proc/1/fd/",
        "dmesg -C",
        "date -s 2000-01-01",
    ],
)
async def test_what_must_not_work(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.bash(command, 10)
    assert result.exit_code != 0
    assert result.exit_code is not None


async def test_no_capabilities_and_no_way_to_them(sandbox: Sandbox) -> None:
    lines = (await sandbox.bash("grep -E '^(Cap|NoNewPrivs)' /proc/self/status", 10)).output.split("\n")
    values = dict(line.split(":\t") for line in lines if line)
    assert values.pop("NoNewPrivs") == "1"
    assert {int(value, 16) for name, value in values.items() if name != "CapBnd"} == {0}


async def test_the_agent_cannot_be_traced(sandbox: Sandbox) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(16, 1, None, None), ctypes.get_errno() != 0
"""
    assert (await sandbox.ipython(code, 10)).output == "(-1, True)\n"


async def test_the_sandbox_is_not_root_towards_the_host(sandbox: Sandbox) -> None:
    await sandbox.bash("sleep 1000 &", 10)
    inside = [one for one in descendants(os.getpid()) if one.pid_inside != one.pid]
    owners = {Path(f"/proc/{one.pid}").stat().st_uid for one in inside if one.pid_inside != 1}
    assert owners == {sandbox_account().uid}
    assert 0 not in owners
    await sandbox.bash("kill %1", 10)
