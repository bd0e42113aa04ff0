"""Archives of changed files: what is read is what was written, and damage is seen."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.sandbox_agent.incremental_tar import (
    END,
    FIFO,
    FILE,
    FOLDER,
    HARD_LINK,
    SPARSE,
    SYMLINK,
    BrokenChanges,
    ChangedFile,
    decoded,
    encoded,
)
from rollyard.sandbox_agent.mounts import Mounts
from rollyard.sandbox_agent.restored_files import exact_reader

NAMES = (
    st.binary(min_size=1, max_size=255)
    .map(lambda name: name.translate(None, b"/\0") or b"x")
    .filter(lambda name: name not in (b".", b".."))
)
PATHS = st.lists(NAMES, min_size=1, max_size=12).map(b"/".join)


@st.composite
def changed_files(draw: st.DrawFn) -> ChangedFile:
    kind = draw(st.sampled_from([FILE, HARD_LINK, SYMLINK, FIFO, FOLDER, SPARSE]))
    entry = ChangedFile(draw(PATHS), kind, draw(st.integers(0, 0o7777)), draw(st.integers(0, 1 << 64)))
    if kind in (HARD_LINK, SYMLINK):
        entry.link = draw(PATHS)
    elif kind == FILE:
        entry.size = draw(st.integers(0, 1 << 40))
        entry.extents = ((0, entry.size),)
    elif kind == SPARSE:
        ends = sorted(draw(st.lists(st.integers(0, 1 << 40), unique=True, min_size=2, max_size=120)))
        entry.extents = [(a, b - a) for a, b in zip(ends[::2], ends[1::2], strict=False)]
        entry.size = ends[-1] + 5
        entry.extents.append((entry.size, 0))
    elif kind == FOLDER:
        entry.names = draw(st.lists(st.tuples(st.sampled_from([b"Y", b"N", b"D"]), NAMES), max_size=50))
    return entry


@given(changed_files())
def test_what_is_read_is_what_was_written(entry: ChangedFile) -> None:
    data = encoded(entry)
    assert len(data) % 512 == 0
    read = decoded(exact_reader(io.BytesIO(data + END).read))
    assert read is not None
    assert (read.path, read.kind, read.mode, read.mtime_ns) == (entry.path, entry.kind, entry.mode, entry.mtime_ns)
    assert (read.size, read.link, list(read.names)) == (entry.size, entry.link, list(entry.names))
    assert list(read.extents) == list(entry.extents)


def test_names_of_tar_files() -> None:
    """Python's tarfile reads the same names and times."""
    names = [b"a", b"d" * 99 + b"/" + b"e" * 200, b"new\nline", "ü".encode(), b"\xff"]
    data = b"".join(encoded(ChangedFile(name, FIFO, 0o640, 1_000_000_001)) for name in names)
    with tarfile.open(fileobj=io.BytesIO(data + END)) as archive:
        members = archive.getmembers()
    assert [member.name.encode("utf-8", "surrogateescape") for member in members] == names
    assert {member.mtime for member in members} == {1.000000001}


@given(st.binary(max_size=2000), st.integers(0, 1023))
def test_damage_is_seen(noise: bytes, at: int) -> None:
    good = encoded(ChangedFile(b"file", FIFO, 0o644, 0)) + END
    bad = good[:at] + noise + good[at + len(noise) :]
    take = exact_reader(io.BytesIO(bad[: 2 * len(good)]).read)
    with suppress(BrokenChanges):
        while decoded(take) is not None:
            pass


@pytest.mark.parametrize("path", [b"../x", b"a/../x", b"a//x", b"./x", b"/x"])
def test_paths_that_lead_elsewhere_are_refused(path: bytes) -> None:
    data = encoded(ChangedFile(path, FIFO, 0o644, 0))
    with pytest.raises(BrokenChanges, match="impossible"):
        decoded(exact_reader(io.BytesIO(data).read))


def test_mounts() -> None:
    lines = [
        b"94 65 0:43 / / rw,relatime - overlay overlay rw,userxattr",
        b"96 94 0:46 / /proc rw,nosuid - proc proc rw",
        b"97 94 0:47 / /dev rw,nosuid shared:1 - tmpfs tmpfs rw",
        b"98 97 0:6 /null /dev/null rw - devtmpfs devtmpfs rw",
        b"99 97 0:39 /shm /dev/shm rw - tmpfs sandbox rw",
        b"95 94 254:0 /x /opt/rollyard ro,nosuid - ext4 /dev/vda rw",
        b"100 94 0:39 /a /with\\040space rw - tmpfs sandbox rw",
        b"101 94 0:39 /b /home/agent ro - tmpfs sandbox rw",
        b"102 94 0:39 /b /home/agent rw - tmpfs sandbox rw",
        b"103 94 0:39 /b /hidden rw - tmpfs sandbox rw",
        b"104 94 0:39 /b /hidden ro - tmpfs sandbox rw",
    ]
    mounts = Mounts(lines)
    assert mounts.writable == {b"/": False, b"/dev/shm": True, b"/with space": True, b"/home/agent": True}
    assert mounts.above == {b"/", b"/dev", b"/opt", b"/home"}
    assert b"/opt/rollyard" in mounts.points


def test_a_folder_has_no_link_of_megabytes() -> None:
    """The entries of all folders are in memory together, and a long link compresses to nothing."""
    entry = ChangedFile(b"folder", FOLDER, 0o755, 0)
    entry.link = b"x" * (1 << 20)
    found = decoded(exact_reader(io.BytesIO(encoded(entry)).read))
    assert found is not None
    assert found.link == b""
