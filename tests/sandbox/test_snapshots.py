"""Snapshots: what a sandbox changed is saved whole, and another sandbox starts from it."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import threading
from pathlib import Path

import pytest
import zstandard

from rollyard.core.errors import SandboxLost, SnapshotUnusable, TooLarge
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.snapshot import PipeEnd, SandboxSnapshot
from rollyard.sandbox_agent.incremental_tar import END, FILE, ChangedFile, encoded
from tests.sandbox.conftest import SMALL
from tests.support.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIST = """
import os, stat, zlib
def seen(top):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != "nested"]
        for name in sorted(folders + files):
            path = os.path.join(folder, name); info = os.lstat(path)
            data = open(path, 'rb').read() if stat.S_ISREG(info.st_mode) and info.st_mode & 0o400 else b''
            link = os.readlink(path) if stat.S_ISLNK(info.st_mode) else ''
            names = stat.S_ISREG(info.st_mode) and info.st_nlink
            yield ascii(path), oct(info.st_mode), info.st_mtime_ns, names, info.st_blocks, zlib.crc32(data), link
"""


def image(folder: Path, name: str) -> Path:
    """Make a root file system without programs. It belongs to the sandboxes' account, as pulled images do."""
    root = folder / name
    contents = {
        "app/keep/a": "1", "app/keep/b": "2", "app/gone/x": "3", "app/file": "old", "app/turned": "f", "usr/bin/none": "",
        "app/tree/deep/leaf": "4", "app/tree/other": "5", "etc/settings": "s",
    }  # fmt: skip
    for place, text in contents.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    account = sandbox_account()
    for path in (root, *root.rglob("*")):
        os.chown(path, account.uid, account.gid)
    root.chmod(0o755)
    return root


async def python(sandbox: Sandbox, code: str) -> str:
    cell = await sandbox.ipython(code, 60)
    assert not cell.error, cell.output
    return cell.output


async def listing(sandbox: Sandbox, *tops: str) -> str:
    return await python(sandbox, LIST + f"print(*(line for top in {tops!r} for line in seen(top)), sep='\\n')")


def archive(snapshot: SandboxSnapshot) -> bytes:
    snapshot.file.seek(0)
    return zstandard.ZstdDecompressor().stream_reader(snapshot.file.read()).read()


CHANGES = """
import os, shutil
os.chdir("/app")
open("file", "a").write(" and new")
os.utime("file", ns=(5, 1_234_567_891_000_000_007))
os.chmod("file", 0o6751)
os.remove("gone/x"); os.remove("keep/b"); os.remove("turned"); os.symlink("keep", "turned")
os.symlink("../etc/settings", "link")
os.symlink("/nowhere", "keep/dangling")
open("first name", "w").write("linked")
os.link("first name", "second name")
os.mkdir("/etc/new", 0o500)
open("/workspace/plan.txt", "w").write("step 1")
open("/home/agent/.profile", "w").write("alias")
open("/dev/shm/x", "w").write("shm")
os.makedirs("/var/tmp/locked/in")
open("/var/tmp/locked/in/f", "w").write("locked")
os.chmod("/var/tmp/locked/in/f", 0)
os.chmod("/var/tmp/locked", 0o100)
"""
FOLDERS = """
shutil.rmtree("gone"); shutil.rmtree("tree"); open("tree", "w").write("a file now")
os.remove("turned"); os.makedirs("turned/inside"); open("turned/inside/y", "w").write("y")
shutil.rmtree("keep"); os.mkdir("keep"); open("keep/a", "w").write("own")
"""
"""Changes that only bubblewrap's overlay allows. With Apptainer, folders of the image cannot be deleted."""


async def test_a_file_is_read_while_a_snapshot_is_written(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    """A snapshot may take minutes, and a call that gets no answer in one minute means a lost sandbox."""
    read = threading.Event()

    def late(end: PipeEnd) -> int:
        read.wait()
        return sum(map(len, end.chunks()))

    async with await sandboxes.start(spec) as sandbox:
        await sandbox.write_file("large", bytes(4 << 20))
        header = {"op": "snapshot", "limit": 1 << 30}
        snapshot = asyncio.create_task(sandbox._through_pipe(header, late, reads=True))
        try:
            async with asyncio.timeout(20):
                await until(lambda: sandbox._pipes == 1)
                assert await sandbox.read_file("large", 4 << 20) == bytes(4 << 20)
        finally:
            read.set()
        _, length = await snapshot
        assert length > 4 << 20


async def test_another_sandbox_starts_with_what_was_changed(sandboxes: SandboxFactory, open_folder: Path) -> None:
    spec, places = SandboxSpec(parse_image(str(image(open_folder, "image"))), SMALL), ("/app", "/workspace", "/var/tmp")
    async with await sandboxes.start(spec) as first:
        await python(first, CHANGES)
        before = await listing(first, *places)
        snapshot = await first.snapshot(folder=open_folder)
        assert await listing(first, *places) == before  # the snapshot has left no trace
        await python(first, "open('/app/later', 'w').write('later')")
    with snapshot:
        assert (snapshot.left_out, snapshot.left_out_count) == ((), 0)
        async with await sandboxes.start_from(spec, snapshot.file) as second:
            assert await listing(second, *places) == before
            assert await second.read_file("/app/file", 99) == b"old and new"
            assert await second.read_file("/dev/shm/x", 99) == b"shm"
            assert "0o40500" in await python(second, "import os; print(oct(os.stat('/etc/new').st_mode))")
            with await second.snapshot() as again:
                assert again.sha256 == snapshot.sha256
            await python(second, "open('/app/keep/c', 'w').write('own'); os.remove('/app/second name')")
            with await second.snapshot() as further:
                async with await sandboxes.start_from(spec, further.file) as third:
                    assert await third.read_file("/app/keep/c", 99) == b"own"
                    assert "second name" not in await listing(third, "/app")
                    assert "locked" in await listing(third, "/var/tmp")
        async with await sandboxes.start(spec) as fresh:
            assert await fresh.read_file("/app/file", 99) == b"old"
    assert os.listdir(open_folder) == ["image"]  # the file had no name


async def test_replaced_folders(sandboxes: SandboxFactory, runtime: Runtime, open_folder: Path) -> None:
    if runtime.name != "bubblewrap":
        pytest.skip("with Apptainer, folders of the image cannot be deleted")
    spec = SandboxSpec(parse_image(str(image(open_folder, "image"))), SMALL)
    async with await sandboxes.start(spec) as first:
        await python(first, CHANGES + FOLDERS)
        before = await listing(first, "/app", "/etc")
        snapshot = await first.snapshot()
    with snapshot:
        async with await sandboxes.start_from(spec, snapshot.file) as second:
            assert await listing(second, "/app", "/etc") == before
            assert await second.read_file("/app/turned/inside/y", 99) == b"y"
            with await second.snapshot() as again:
                assert again.sha256 == snapshot.sha256


async def test_a_sandbox_of_this_machines_own_programs(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as first:
        await first.bash("mkdir -p a/b && echo hi > a/b/f && ln -s b a/l && rm -rf ~/.ipython", 20)
        snapshot = await first.snapshot()
    with snapshot:
        async with await sandboxes.start_from(spec, snapshot.file) as second:
            assert (
                await second.bash("cat a/l/f; pwd; touch a/b/new && ls -1 a/b", 20)
            ).output == "hi\n/workspace\nf\nnew\n"


async def test_five_thousand_files(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    make = "mkdir -p t && cd t && for d in {1..50}; do mkdir $d; for f in {1..100}; do echo $d $f > $d/$f; done; done"
    count = "cat /workspace/t/*/* | sort -n | cksum; find /workspace/t -type f | wc -l"
    async with await sandboxes.start(spec) as first:
        await first.bash(make, 60)
        before = (await first.bash(count, 60)).output
        snapshot = await first.snapshot()
    with snapshot:
        assert snapshot.files == 5000
        assert snapshot.size < snapshot.archive_bytes / 20
        async with await sandboxes.start_from(spec, snapshot.file) as second:
            assert (await second.bash(count, 60)).output == before
    assert before.endswith("5000\n")


async def test_an_unchanged_image_is_not_read(sandboxes: SandboxFactory, open_folder: Path) -> None:
    root = image(open_folder, "image")
    (root / "usr/big").write_bytes(os.urandom(9 << 20))
    async with await sandboxes.start(SandboxSpec(parse_image(str(root)), SMALL)) as sandbox:
        with await sandbox.snapshot(1 << 20) as snapshot:
            assert snapshot.archive_bytes < 64 << 10


async def test_too_large(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.bash("head -c 3000000 /dev/urandom > big", 20)
        with pytest.raises(TooLarge, match="they need more than the 2000000 bytes of a snapshot; delete files"):
            await sandbox.snapshot(2_000_000)
        assert (await sandbox.bash("rm big; echo on", 20)).output == "on\n"
        (await sandbox.snapshot(2_000_000)).close()
        await sandbox.bash("mkdir many && cd many && for n in {1..3000}; do : > $n; done", 60)
        with pytest.raises(TooLarge):
            await sandbox.snapshot(2_000_000)


HOSTILE = r"""
import os, socket
os.chdir("/workspace")
os.mkfifo("fifo", 0o640); s = socket.socket(socket.AF_UNIX); s.bind("socket")
try: os.mknod("device", 0o020600, os.makedev(0, 0))
except PermissionError: open("refused", "w")
with open("sparse", "wb") as f:
    for n in range(30): f.seek(n << 20); f.write(b"%02d" % n)
    f.truncate(60 << 20)
with open("hole", "wb") as f: f.truncate(60 << 20)
for name in (b"new\nline", b"\xff\xfe", b"-rf", b" ", b"\\x41", b"D" * 255, b".wh.file", b".wh..wh..opq"):
    open(name, "wb").write(name)
os.symlink("/proc/1/root", "up")
os.symlink("../../../../etc", "out")
os.symlink("a" * 4000, "long link")
os.symlink("loop", "loop")
os.mkdir("nested"); os.chdir("nested")
for n in range(40): os.mkdir("n" * 200); os.chdir("n" * 200)
open("unreachable", "w")
"""


async def test_hostile_files(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as first:
        await python(first, HOSTILE)
        before = await listing(first, "/workspace")
        snapshot = await first.snapshot()
    with snapshot:
        assert any(name.startswith("/workspace/nested/nnn") or "nnn" in name for name in snapshot.left_out)
        assert "/workspace/socket" in snapshot.left_out
        assert snapshot.archive_bytes < 4 << 20
        async with await sandboxes.start_from(spec, snapshot.file) as second:
            after = await listing(second, "/workspace")
            lost = ("socket'", "device'")
            kept = [line for line in before.splitlines() if not any(word in line for word in lost)]
            assert "fifo" in before
            assert sorted(after.splitlines()) == sorted(kept)
            with await second.snapshot() as again:
                assert again.sha256 == snapshot.sha256 or snapshot.left_out_count


async def test_another_image_is_refused(sandboxes: SandboxFactory, open_folder: Path) -> None:
    one, other = image(open_folder, "one"), image(open_folder, "other")
    (other / "app/keep/a").unlink()
    async with await sandboxes.start(SandboxSpec(parse_image(str(one)), SMALL)) as first:
        await python(first, "open('/app/keep/new', 'w').write('x')")
        snapshot = await first.snapshot()
    with (
        snapshot,
        pytest.raises(SnapshotUnusable, match="the image has no /app/keep/a, which the snapshot has not changed"),
    ):
        await sandboxes.start_from(SandboxSpec(parse_image(str(other)), SMALL), snapshot.file)


async def test_a_damaged_file_is_refused(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as first:
        await first.bash("head -c 100000 /dev/urandom > random", 20)
        with await first.snapshot() as snapshot:
            snapshot.file.seek(0)
            good = snapshot.file.read()
    flipped = good[:5000] + bytes([good[5000] ^ 1]) + good[5001:]
    for bad, why in (
        (good[:50_000], "ends too early"),
        (flipped, "damaged"),
        (b"x" * 100, "damaged"),
        (b"", "too early"),
    ):
        with pytest.raises(SnapshotUnusable, match=why):
            await sandboxes.start_from(spec, io.BytesIO(bad))


async def test_numbers_and_names_that_no_file_can_have_are_refused(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    for name, mode, mtime in (
        (b"tmp/a", 0o644, 10**30),
        (b"tmp/a" + b"\0" * 100 + b"b", 0o644, 0),
    ):
        made = zstandard.compress(encoded(ChangedFile(name, FILE, mode, mtime)) + END)
        with pytest.raises(SnapshotUnusable):
            await sandboxes.start_from(spec, io.BytesIO(made))


async def test_a_snapshot_that_does_not_compress_fills_no_disk(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.bash("head -c 20000000 /dev/urandom > big", 20)
        with pytest.raises(TooLarge, match="a compressed snapshot may have at most 1048576 bytes"):
            await sandbox.snapshot(most_compressed=1 << 20)
        await sandbox.bash("rm big; touch small", 20)
        with await sandbox.snapshot(most_compressed=1 << 20) as snapshot:
            assert snapshot.files > 0


async def test_names_that_lead_elsewhere_are_refused(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    for name in (b"../../tmp/escaped", b"workspace/../../escaped", b"/etc/escaped", b"workspace//x"):
        file = ChangedFile(name, FILE, 0o644, 0)
        made = zstandard.compress(encoded(file) + END)
        with pytest.raises(SnapshotUnusable, match="impossible file name"):
            await sandboxes.start_from(spec, io.BytesIO(made))
    assert not Path("/tmp/escaped").exists()


async def test_a_sandbox_with_a_smaller_disk(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as first:
        await first.bash("head -c 20000000 /dev/urandom > big", 20)
        snapshot = await first.snapshot()
    small = SandboxSpec(None, Limits(1, 1 << 30, 8 << 20))
    with (
        snapshot,
        pytest.raises(SnapshotUnusable, match=r"does not fit into the sandbox's 8388608 bytes: raise `sandbox\.disk`"),
    ):
        await sandboxes.start_from(small, snapshot.file)


async def test_a_sandbox_that_ends_meanwhile(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    sandbox = await sandboxes.start(spec)
    await sandbox.bash("head -c 40000000 /dev/urandom > big", 20)
    files = len(os.listdir("/proc/self/fd"))
    taking = asyncio.create_task(sandbox.snapshot())
    await asyncio.sleep(0)
    await sandbox.close()
    with pytest.raises(SandboxLost):
        await taking
    assert len(os.listdir("/proc/self/fd")) < files


async def test_a_cancelled_snapshot(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with await sandboxes.start(spec) as sandbox:
        await sandbox.bash("head -c 40000000 /dev/urandom > big", 20)
        files = len(os.listdir("/proc/self/fd"))
        for delay in (0, 0.001, 0.01, 0.03):
            taking = asyncio.create_task(sandbox.snapshot())
            await asyncio.sleep(delay)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        assert len(os.listdir("/proc/self/fd")) == files
        (await sandbox.snapshot()).close()
        assert (await sandbox.bash("echo on", 20)).output == "on\n"


async def test_gnu_tar_reads_it(sandboxes: SandboxFactory, runtime: Runtime, open_folder: Path, tmp_path: Path) -> None:
    """Its option `--incremental` deletes what the sandbox has deleted."""
    root = image(open_folder, "image")
    async with await sandboxes.start(SandboxSpec(parse_image(str(root)), SMALL)) as sandbox:
        await python(sandbox, CHANGES.replace("0o100", "0o700") + (FOLDERS if runtime.name == "bubblewrap" else ""))
        await python(sandbox, "f = open('/app/sparse', 'wb'); f.seek(9 << 20); f.write(b'end'); f.close()")
        with await sandbox.snapshot() as snapshot:
            (tmp_path / "x.tar").write_bytes(archive(snapshot))
    argv = ["tar", "--extract", "--incremental", f"--file={tmp_path / 'x.tar'}", f"--directory={root}"]
    subprocess.run(argv, check=True, capture_output=True)
    assert (root / "app/file").read_text() == "old and new"
    assert not (root / "app/gone/x").exists()
    assert not (root / "app/keep/b").exists()
    if runtime.name == "bubblewrap":
        assert not (root / "app/gone").exists()
        assert (root / "app/keep/a").read_text() == "own"
        assert (root / "app/tree").read_text() == "a file now"
        assert (root / "app/turned/inside/y").read_text() == "y"
    assert (root / "app/sparse").read_bytes() == bytes(9 << 20) + b"end"
    assert (root / "app/file").stat().st_mtime_ns == 1_234_567_891_000_000_007
    assert (root / "app/second name").samefile(root / "app/first name")
