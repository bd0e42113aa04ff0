"""Roots that have links, files or nothing where a sandbox needs a folder: each starts, with each runtime."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from tests.sandbox.conftest import SMALL
from tests.support.small_roots import busybox_root

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def root(open_folder: Path) -> Path:
    """A root with busybox. The name of its folder has the marks that separate options of mounts."""
    return busybox_root(open_folder / "a:b,c\\d")


def put(root: Path, place: str, target: str) -> None:
    """Put a link in the place of a folder."""
    path = root / place
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def give_away(root: Path) -> SandboxSpec:
    account = sandbox_account()
    for path in (root, *root.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return SandboxSpec(parse_image(str(root)), SMALL)


async def check_tools(sandbox: Sandbox) -> None:
    assert (
        await sandbox.bash("echo hi > /dev/shm/f && cat /dev/shm/f; test -c /dev/full && echo full", 10)
    ).output == "hi\nfull\n"
    assert (await sandbox.ipython("1+1", 30)).output == "2\n"
    assert (await sandbox.edit("create", "edited", file_text="text\n")).ok
    assert (await sandbox.bash("cat edited && rm edited", 10)).output == "text\n"


async def test_long_lines_in_an_image_that_has_no_bash(sandboxes: SandboxFactory, root: Path) -> None:
    for name in ("bash", "hush"):
        (root / "bin" / name).unlink(missing_ok=True)
    async with await sandboxes.start(give_away(root)) as sandbox:
        for length in (4094, 4096, 9000, 300_000):
            assert (await sandbox.bash(f"printf %s '{'x' * length}' | wc -c", 10)).output == f"{length}\n"
        script = f"cat > script <<'END'\nprintf %s '{'x' * 9000}' | wc -c\nEND\nash script"
        assert (await sandbox.bash(script, 10)).output == "9000\n"


async def test_absolute_links_in_the_place_of_mount_points(sandboxes: SandboxFactory, root: Path) -> None:
    links = {"tmp": "/data/tmp", "var/tmp": "/tmp", "home": "/usr/home", "opt": "/usr/local/opt", "run": "/var/run"}
    for place, target in {**links, "workspace": "../srv/work"}.items():
        put(root, place, target)
    async with await sandboxes.start(give_away(root)) as sandbox:
        await check_tools(sandbox)
        for place, target in links.items():
            assert (
                await sandbox.bash(f"readlink /{place}; echo x > /{place}/x && cat /{place}/x", 10)
            ).output == f"{target}\nx\n"
        assert (
            await sandbox.bash("pwd -P; ls /data/tmp; test -d /usr/local/opt/rollyard && echo own", 10)
        ).output == "/srv/work\nx\nown\n"


async def test_a_link_and_a_file_in_the_place_of_the_kernels_folders(sandboxes: SandboxFactory, root: Path) -> None:
    put(root, "proc", "/nowhere")
    shutil.rmtree(root / "dev")
    (root / "dev").write_text("a file")
    async with await sandboxes.start(give_away(root)) as sandbox:
        await check_tools(sandbox)


async def test_files_in_the_place_of_folders(sandboxes: SandboxFactory, root: Path) -> None:
    (root / "home").write_text("a file")
    (root / "workspace").write_text("a file")
    put(root, "run", "/run")  # a loop
    (root / "proc" / "left").write_text("a file below")
    async with await sandboxes.start(give_away(root)) as sandbox:
        await check_tools(sandbox)
        assert (await sandbox.bash("pwd; cat /home; ls /proc/left", 10)).output.startswith("/\na file")


async def test_no_place_for_our_python_is_said(sandboxes: SandboxFactory, root: Path) -> None:
    (root / "opt").write_text("a file")
    with pytest.raises(ImageUnavailable, match="opt is not a folder, and a sandbox needs a folder there: delete it"):
        await sandboxes.start(give_away(root))


async def test_folders_of_an_image_are_removed_and_renamed(sandboxes: SandboxFactory, root: Path) -> None:
    for place in ("repo/build/deep", "repo/dir", "repo/.git"):
        (root / place).mkdir(parents=True)
        (root / place / "file").write_text(place)
    async with await sandboxes.start(give_away(root)) as one, await sandboxes.start(give_away(root)) as two:
        done = await one.bash("cd /repo && rm -rf build .git && mv dir dir2 && mkdir build && ls -1A . build dir2", 10)
        assert done.output == ".:\nbuild\ndir2\n\nbuild:\n\ndir2:\nfile\n"
        assert (
            await two.bash("ls -1A /repo /repo/build", 10)
        ).output == "/repo:\n.git\nbuild\ndir\n\n/repo/build:\ndeep\n"
    assert (root / "repo/build/deep/file").read_text() == "repo/build/deep"


async def test_files_of_an_image_in_scratch_folders_are_seen(sandboxes: SandboxFactory, root: Path) -> None:
    for place in ("tmp", "var/tmp", "root", "home/agent", "mnt", "run", "workspace"):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / "mark").write_text("mark\n")
    async with await sandboxes.start(give_away(root)) as sandbox:
        places = "/tmp /var/tmp /root /home/agent /mnt /run /workspace"
        command = f"for d in {places}; do cat $d/mark && echo new > $d/mark && rm $d/mark && ls -A $d; done"
        assert (await sandbox.bash(command, 10)).output == "mark\n" * 7


@pytest.mark.parametrize("bash", ["#!/no/such/interpreter\n", "no program at all"], ids=["no loader", "another format"])
async def test_a_bash_of_the_image_that_cannot_be_executed_is_replaced(
    sandboxes: SandboxFactory, root: Path, bash: str
) -> None:
    (root / "bin" / "bash").write_text(bash)
    (root / "bin" / "bash").chmod(0o755)
    (root / "bin" / "python3").write_text("broken")
    (root / "bin" / "python3").chmod(0o755)
    async with await sandboxes.start(give_away(root)) as sandbox:
        await check_tools(sandbox)
        assert (await sandbox.bash("echo ${BASH_VERSION%%.*}", 10)).output == "5\n"


REFUSED = """
mount -t tmpfs none /mnt
umount /dev
chroot / true
unshare -U true
nsenter -t 1 -m true
mknod /tmp/sda b 8 0
hostname x
dmesg -c
ip link set lo down
cat /proc/1/mem
cat /proc/1/environ
ls /proc/1/fd/
echo 5 > /proc/1/oom_score_adj
echo 1 > /proc/sys/kernel/shmmni
echo x > /proc/sysrq-trigger
echo x > /opt/rollyard/x
echo x > /dev/x
""".strip().splitlines()
ALLOWED = """
id -u; echo x > f && chmod 000 f && cat f && chown 33:33 f
mkdir -m 000 d && touch d/f && rm -r d f
kill -9 1
"""
TRACE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(16, 1, None, None), ctypes.get_errno() != 0
"""


async def test_root_in_a_sandbox_has_rights_over_files_alone(sandboxes: SandboxFactory, root: Path) -> None:
    (root / "mnt").mkdir()
    async with await sandboxes.start(give_away(root)) as sandbox:
        assert (await sandbox.bash(ALLOWED, 10)).output == "0\nx\n"
        for command in REFUSED:
            done = await sandbox.bash(command, 10)
            assert done.exit_code not in (0, 127, None), (command, done)
        lines = (await sandbox.bash("grep Cap /proc/self/status", 10)).output.split()
        assert int(lines[lines.index("CapBnd:") + 1], 16) == 0x800001FB
        assert (await sandbox.ipython(TRACE, 30)).output == "(-1, True)\n"
